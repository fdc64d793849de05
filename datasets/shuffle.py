"""ShuffleSampler: all images in random order, split into batches of one size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from zoo.errors import UserError

from ._epochs import EpochBatches


class ShuffleSampler(EpochBatches):
    """Take all images in random order, whatever their classes, in batches of ``batch_size``.

    If the last batch of an epoch would be smaller, it is filled with other images that are not in
    it: all batches have the same size and no image twice.

    Args:
        labels: (N,) class of each image; only their number matters.
        batch_size: images in a batch, 1 to N.
        seed: of the order; an epoch depends only on it and its number.

    Raises:
        UserError: ``batch_size`` is out of range.
    """

    def __init__(self, labels: ArrayLike, batch_size: int, seed: int = 0) -> None:
        self._images = len(np.asarray(labels))
        if not 1 <= batch_size <= self._images:
            raise UserError(
                f"sampler.batch_size is {batch_size}; it must be from 1 to the number of images, "
                f"{self._images}"
            )
        super().__init__(batch_size, seed)

    def _epoch(self, rng: np.random.Generator) -> Iterator[list[int]]:
        order = rng.permutation(self._images)
        rest = self._images % self.batch_size
        if rest:
            others = rng.permutation(order[:-rest])
            order = np.concatenate([order, others[: self.batch_size - rest]])
        yield from order.reshape(-1, self.batch_size).tolist()
