"""SmartMiningSampler: triplets whose negatives are searched among all training images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from zoo.errors import UserError

from ._epochs import LateBatches

_BLOCK_ELEMENTS = 1 << 22  # images x all images of which cosines are computed at once


class SmartMiningSampler(LateBatches):
    """Take anchors, a positive of each, and a negative from those nearest to it in all the data.

    At the start of an epoch, the current network embeds all images, and the nearest ``nearest``
    images of other classes of each are found. Every image with another of its class is an anchor
    once. Its positive is drawn from its class, and its negative from the first L of its nearest.

    L is adapted in each epoch: it is the largest for which the share of triplets that violate the
    margin, ``D_an < D_ap + margin`` with D squared distances on the unit sphere, is at least
    ``effective``. So triplets become harder as the network learns: at first nearly all of them
    teach something, later only those with the very nearest negatives.

    A batch has first its anchors, then their positives, then their negatives. An image that is in
    it already is not drawn again if there is another.

    Differs from the paper in:
        * the search, which is exact: O(N²) time in blocks. The paper searches a graph of
          approximate neighbours, which takes less time for many images.
        * the controller. The paper adapts how hard negatives are to the course of training by a
          controller of its own; its text was not at hand.
        * the loss is chosen apart. The paper adds a global loss to the triplet loss.

    Args:
        labels: (N,) class of each image, any integers.
        embed: returns the embeddings (n, d) of images by index; supplied by the runner.
        anchors: of a batch, which has three images for each.
        margin: of the triplets that count as effective, in units of D.
        effective: the share of them that is wanted, above 0, up to 1.
        nearest: negatives of an image that are found; the longest L.
        seed: of the order; an epoch depends only on it, its number and the network.

    Raises:
        UserError: numbers are out of range, there is one class, or no class has two images.

    Reference:
        Harwood, Kumar, Carneiro, Reid, Drummond. Smart Mining for Deep Metric Learning. ICCV 2017,
        arXiv:1704.01285.
    """

    paper: ClassVar[str] = "Harwood et al. 2017, Smart Mining for Deep Metric Learning"

    def __init__(
        self,
        labels: ArrayLike,
        embed: Callable[[list[int]], NDArray[np.floating[Any]]],
        anchors: int,
        margin: float = 0.2,
        effective: float = 0.5,
        nearest: int = 64,
        seed: int = 0,
    ) -> None:
        if anchors < 1 or nearest < 1:
            raise UserError(
                f"sampler.anchors={anchors} and sampler.nearest={nearest} must be at least 1"
            )
        if not 0 <= margin <= 4 or not 0 < effective <= 1:
            raise UserError(
                f"sampler.margin={margin} must be from 0 to 4, and sampler.effective={effective} "
                "above 0 and at most 1"
            )
        super().__init__(3 * anchors, seed)
        found, self._of_class = np.unique(np.asarray(labels), return_inverse=True)
        order = np.argsort(self._of_class, kind="stable")
        ends = np.cumsum(np.bincount(self._of_class, minlength=len(found)))
        self._classes = np.split(order, ends[:-1]) if len(found) else []
        pairs = sum(len(images) > 1 for images in self._classes)
        if len(found) < 2 or not pairs:
            raise UserError(
                f"triplets need two classes, one of which has two images; the data has "
                f"{len(found)}, of which {pairs} have two"
            )
        self.anchors, self.margin, self.effective = anchors, margin, effective
        self.nearest = nearest
        self._embed = embed

    def _epoch(self, rng: np.random.Generator) -> Iterator[list[int]]:
        f = torch.as_tensor(np.asarray(self._embed(list(range(len(self._of_class))))))
        f = torch.nn.functional.normalize(f.float())
        places, near, counts = self._nearest(f)
        sizes = np.bincount(self._of_class)
        every = rng.permutation(np.flatnonzero(sizes[self._of_class] > 1))
        # The last batch is filled up with anchors of the first.
        every = np.resize(every, -(-len(every) // self.anchors) * self.anchors)
        positives = np.array([self._positive(a, set(), rng) for a in every])
        longest = self._length(f, every, positives, near, counts)
        for start in range(0, len(every), self.anchors):
            anchors = [int(a) for a in every[start : start + self.anchors]]
            there = set(anchors)
            chosen: list[list[int]] = [[], []]
            for a, p in zip(anchors, positives[start:].tolist(), strict=False):
                chosen[0].append(self._positive(a, there, rng) if p in there else p)
                there.add(chosen[0][-1])
            for a in anchors:
                first = places[a, : counts[a]].tolist()
                within = first[: max(1, min(longest, len(first)))]
                free = [n for n in within if n not in there]
                free = free or [n for n in first if n not in there][:1] or within
                chosen[1].append(int(free[rng.integers(len(free))]))
                there.add(chosen[1][-1])
            yield [*anchors, *chosen[0], *chosen[1]]

    def _positive(self, anchor: int, taken: set[int], rng: np.random.Generator) -> int:
        """Return another image of its class, one that is not taken if there is one."""
        others = [int(i) for i in self._classes[self._of_class[anchor]] if i != anchor]
        free = [i for i in others if i not in taken] or others
        return free[rng.integers(len(free))]

    def _nearest(self, f: Tensor) -> tuple[NDArray[np.int64], Tensor, NDArray[np.int64]]:
        """Return the nearest negatives (N, k) of each image, their cosines, and how many exist."""
        y = torch.from_numpy(self._of_class)
        counts = len(y) - np.bincount(self._of_class)[self._of_class]
        k = min(self.nearest, int(counts.max()))
        block = max(1, _BLOCK_ELEMENTS // len(f))
        found = []
        for rows in torch.split(torch.arange(len(f)), block):
            cosine = (f[rows] @ f.T).masked_fill_(y[rows, None] == y, -torch.inf)
            found.append(cosine.topk(k, dim=1))
        places = torch.cat([of_block.indices for of_block in found]).numpy()
        return places, torch.cat([one.values for one in found]), np.minimum(counts, k)

    def _length(
        self,
        f: Tensor,
        anchors: NDArray[np.int64],
        positives: NDArray[np.int64],
        near: Tensor,
        counts: NDArray[np.int64],
    ) -> int:
        """Return L: with negatives from the first L, enough triplets violate the margin."""
        a, p = torch.from_numpy(anchors), torch.from_numpy(positives)
        # D = 2 - 2 cos, so that D_an < D_ap + margin is cos_an > cos_ap - margin / 2.
        least = (f[a] * f[p]).sum(1) - self.margin / 2
        there = torch.arange(near.shape[1]) < torch.from_numpy(counts)[a][:, None]
        violated = ((near[a] > least[:, None]) & there).double().cumsum(1)
        share = (violated / there.cumsum(1)).mean(0)  # with the first 1, 2, ... of the nearest
        enough = torch.nonzero(share >= self.effective).flatten()
        return int(enough[-1]) + 1 if len(enough) else 1
