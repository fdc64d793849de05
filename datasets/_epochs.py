"""The base class of samplers: batches that are a pure function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Sampler

from zoo.errors import UserError

_MOST_IMAGES = 2**20  # in a batch; more is a typing error, and would fill the memory


class EpochBatches(Sampler[list[int]]):
    """Endless batches that can be resumed at any position; a subclass defines ``_epoch``.

    Every iterator continues at the sampler's position, so a second one does not start over; as soon
    as a batch is yielded, the state refers to the next one. With the workers of a ``DataLoader``,
    which fetch ahead, the state is also ahead of the training.

    Args:
        batch_size: images in a batch, at most 2^20.
        seed: not negative.

    Raises:
        UserError: a batch has more images, or the seed is negative.
    """

    def __init__(self, batch_size: int, seed: int) -> None:
        if seed < 0:
            raise UserError(f"seed is {seed}; it must not be negative")
        if batch_size > _MOST_IMAGES:
            raise UserError(f"a batch of {batch_size:,} images is too large; make it smaller")
        self.batch_size = batch_size
        self.seed = seed
        self._epoch_number = 0
        self._batch_number = 0
        self._batches: list[list[int]] | None = None  # of this epoch, once they are needed

    def _epoch(self, rng: np.random.Generator) -> Iterable[list[int]]:
        """Return the batches of one epoch, at least one; all randomness comes from ``rng``."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._current())

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield self._next()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of the next batch, both from 0."""
        return {"epoch": self._epoch_number, "batch": self._batch_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch that was next when the state was saved.

        Raises:
            UserError: an epoch has no such batch: the state was saved with other labels or sizes.
        """
        epoch, batch = state["epoch"], state["batch"]
        self._epoch_number, self._batch_number, self._batches = epoch, 0, None
        if not 0 <= batch < len(self):
            raise UserError(
                f"the sampler cannot continue at batch {batch} of an epoch that has {len(self)}: "
                "its state was saved with other data or another batch size"
            )
        self._batch_number = batch

    def _next(self) -> list[int]:
        batches = self._current()
        batch = batches[self._batch_number]
        self._batch_number += 1
        if self._batch_number == len(batches):
            self._epoch_number, self._batch_number, self._batches = self._epoch_number + 1, 0, None
        return batch

    def _current(self) -> list[list[int]]:
        if self._batches is None:
            rng = np.random.default_rng([self.seed, self._epoch_number])
            self._batches = list(self._epoch(rng))
        return self._batches


class LateBatches(EpochBatches):
    """Batches that depend on the network: an epoch is drawn when its first batch is needed.

    It cannot be drawn again when a run is resumed, so it is part of the state. A subclass defines
    ``_epoch``, whose batches are all of one size.
    """

    draws_late: ClassVar[bool] = True
    _drawn: torch.Tensor | None = None  # the batches of this epoch, made once for all states

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the batches of an epoch that has begun."""
        drawn = None if self._batches is None else self._drawn
        return {**super().state_dict(), "batches": drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch that was next when the state was saved."""
        self._epoch_number, self._batch_number = state["epoch"], state["batch"]
        self._drawn = state["batches"]
        self._batches = None if self._drawn is None else self._drawn.tolist()

    def _current(self) -> list[list[int]]:
        is_new = self._batches is None
        batches = super()._current()
        if is_new:
            self._drawn = torch.tensor(batches)
        return batches
