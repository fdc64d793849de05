"""GroupedSampler: batches of images that a loss wants together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from zoo.errors import UserError

from ._epochs import EpochBatches
from .m_per_class import MPerClassSampler

_FEWEST = 2  # classes of a batch: with one there are no negatives


class GroupedSampler(EpochBatches):
    """Draw each batch from one group of images, a few images from each of some classes.

    The loss says which images belong together, anew for each epoch (``begin_epoch``, see
    :class:`zoo.base.LossHooks`): in divide and conquer, those of one cluster. Within a group,
    batches are those of ``m_per_class``; the groups' batches alternate at random. A group of fewer
    than ``classes`` classes gives smaller batches. Groups of only one class are put together. Until
    the loss says something, all images are one group.

    Args:
        labels: (N,) class of each image, any integers.
        classes: different classes of a batch, at least 2.
        per_class: images of each, at least 1.
        seed: of the order; an epoch depends only on it, its number and the groups.

    Raises:
        UserError: sizes are too small, or there are too few classes.
    """

    paper: ClassVar[str] = (
        "Sanakoyeu et al. 2019, Divide and Conquer the Embedding Space for Metric Learning"
    )
    draws_late = True

    def __init__(self, labels: ArrayLike, classes: int, per_class: int, seed: int = 0) -> None:
        self._labels = np.asarray(labels)
        MPerClassSampler(labels, classes, per_class, seed)  # checks the arguments
        self.classes, self.per_class = classes, per_class
        self._groups = np.zeros(len(self._labels), np.int64)
        super().__init__(classes * per_class, seed)

    def regroup(self, groups: NDArray[np.int64]) -> None:
        """Draw each batch from one group from now on; ``groups`` (N,) has that of each image."""
        groups = np.asarray(groups)
        if groups.shape != self._labels.shape:
            raise UserError(f"{groups.shape} groups do not fit {len(self._labels):,} images")
        self._groups, self._batches = groups.astype(np.int64), None

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the groups."""
        return {**super().state_dict(), "groups": torch.from_numpy(self._groups)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch that was next when the state was saved."""
        self.regroup(np.asarray(state["groups"]))
        super().load_state_dict(state)

    def _epoch(self, rng: np.random.Generator) -> list[list[int]]:
        batches = [batch for rows in self._rows() for batch in self._of_group(rows, rng)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _rows(self) -> Iterator[NDArray[np.intp]]:
        """Yield the images of each group that has enough classes, then those of the others."""
        others = []
        for group in np.unique(self._groups):
            rows = np.flatnonzero(self._groups == group)
            if len(np.unique(self._labels[rows])) >= _FEWEST:
                yield rows
            else:
                others.append(rows)
        if others:
            yield np.concatenate(others)

    def _of_group(self, rows: NDArray[np.intp], rng: np.random.Generator) -> Iterator[list[int]]:
        labels = self._labels[rows]
        classes = min(self.classes, len(np.unique(labels)))
        if classes < _FEWEST:
            return  # these images alone have no negatives
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constructor has said that some are repeated
            sampler = MPerClassSampler(labels, classes, self.per_class)
        for batch in sampler._epoch(rng):
            yield rows[batch].tolist()
