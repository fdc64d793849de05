"""What the samplers share: batches that are a pure function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from zoo.errors import UserError

_MOST_IMAGES = 2**20  # of a batch; more is a slip, and would fill the memory


class EpochBatches(Sampler[list[int]]):
    """Batches without end, which can be gone on with from any place; a subclass writes ``_epoch``.

    Every iterator goes on from where the sampler stands, so a second one does not start over; and
    once a batch is out, the state says the next one. With the workers of a ``DataLoader``, which
    fetch ahead, the state is ahead of what the training has seen as well.

    Args:
        batch_size: images of a batch, at most 2^20.
        seed: not negative.

    Raises:
        UserError: a batch of more images, or a negative seed.
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
        self._batches: list[list[int]] | None = None  # of this epoch, once they are asked for

    def _epoch(self, rng: np.random.Generator) -> Iterable[list[int]]:
        """Return the batches of one epoch, at least one, all randomness drawn from ``rng``."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._current())

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield self._next()

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and number of the batch that comes next, both from 0."""
        return {"epoch": self._epoch_number, "batch": self._batch_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the batch that came next when the state was taken.

        Raises:
            UserError: an epoch has no such batch: the state was taken with other labels or sizes.
        """
        epoch, batch = state["epoch"], state["batch"]
        self._epoch_number, self._batch_number, self._batches = epoch, 0, None
        if not 0 <= batch < len(self):
            raise UserError(
                f"the sampler is to go on at batch {batch} of an epoch that has {len(self)}: "
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
