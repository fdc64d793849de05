"""MPerClassSampler: batches of a few images from each of some classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoo.errors import UserError

from ._epochs import EpochBatches

_LATE = 1000.0


class MPerClassSampler(EpochBatches):
    """Take ``per_class`` images of each class of a batch, and over an epoch every image.

    The images of a class, shuffled, form a ring that is split into groups of ``per_class``; the
    last group of an epoch continues into the first. Thus a group has ``per_class`` different images
    if the class has that many; if not, they are repeated as evenly as possible (5 of 2 images: 3
    and 2), and a warning says for how many classes: an image and its copy are a positive pair at
    distance zero, from which there is nothing to learn.

    A batch takes one group of each of its classes, drawn with probability proportional to the
    groups that the class has left, except that classes with more groups than remaining batches come
    first. When fewer than ``classes`` have groups left, others are drawn once more. An epoch is as
    short as this allows: the number of groups over ``classes``, rounded up, or the number of groups
    of the largest class, if that is more.

    Unlike the sampler of pytorch-metric-learning, which draws classes and images independently for
    each batch, it leaves no image out.

    The images of a class are next to each other in a batch.

    Args:
        labels: (N,) class of each image, any integers.
        classes: different classes of a batch, at least 2.
        per_class: images of each, at least 1. If a class has fewer, some are repeated, so that
            every class has the same weight in a batch.
        seed: of the order; an epoch depends only on it and its number.

    Raises:
        UserError: sizes are too small, or there are too few classes.
    """

    paper: ClassVar[str] = (
        "Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification"
    )

    def __init__(self, labels: ArrayLike, classes: int, per_class: int, seed: int = 0) -> None:
        if classes < 2 or per_class < 1:
            raise UserError(
                f"sampler.classes={classes} and sampler.per_class={per_class}: at least 2 and 1 "
                "are needed, since a batch of one class has no negatives"
            )
        labels = np.asarray(labels)
        self._by_class = np.argsort(labels, kind="stable")
        self._sizes = np.unique(labels, return_counts=True)[1]
        if len(self._sizes) < classes:
            raise UserError(
                f"batches of {classes} classes cannot be made: the data has {len(self._sizes)}; "
                "set sampler.classes to at most that"
            )
        self.classes = classes
        self.per_class = per_class
        super().__init__(classes * per_class, seed)
        short = int((self._sizes < per_class).sum())
        if short:
            have = "has" if short == 1 else "have"
            warnings.warn(
                f"{short:,} of {len(self._sizes):,} training classes {have} fewer than "
                f"sampler.per_class={per_class} images, which are repeated within a batch",
                stacklevel=2,
            )

    def _epoch(self, rng: np.random.Generator) -> Iterator[list[int]]:
        sizes, ends = self._sizes, np.cumsum(self._sizes)
        ring = self._shuffle_within_classes(rng)
        done = np.zeros_like(sizes)
        for chosen in self._schedule(rng):
            place = done[chosen, None] * self.per_class + np.arange(self.per_class)
            start, size = (ends - sizes)[chosen, None], sizes[chosen, None]
            done[chosen] += 1
            yield ring[start + place % size].ravel().tolist()

    def _shuffle_within_classes(self, rng: np.random.Generator) -> NDArray[np.intp]:
        of_class = np.repeat(np.arange(len(self._sizes)), self._sizes)
        return self._by_class[np.lexsort((rng.random(len(of_class)), of_class))]

    def _schedule(self, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """Yield the classes of each batch."""
        left = -(-self._sizes // self.per_class)
        batches = max(-(-int(left.sum()) // self.classes), int(left.max()))
        for still in range(batches, 0, -1):
            # The first of exponential times with rates `left` are a draw in proportion to it; none
            # is as long as _LATE, after which classes with nothing left are drawn.
            times = rng.standard_exponential(len(left))
            order = np.where(left > 0, times / np.maximum(left, 1), _LATE + times)
            order[left == still] = -1  # needed in all remaining batches to place all its groups
            chosen = np.argpartition(order, self.classes - 1)[: self.classes]
            left[chosen] = np.maximum(left[chosen] - 1, 0)
            yield chosen
