"""Pairs drawn so that all distances are equally likely."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances


class UniformHistogramMiner(Miner):
    """Draw the same number of pairs from every range of distances.

    The distances of all positive pairs, Euclidean on the unit sphere, are divided from the smallest
    to the largest into ``num_bins`` bins of equal width, and ``pos_per_bin`` pairs are drawn from
    every bin that is not empty, with replacement. Negative pairs are drawn likewise.

    Args:
        num_bins: bins of either kind.
        pos_per_bin: positive pairs drawn from each.
        neg_per_bin: negative pairs drawn from each.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, anchors,
        negatives), which depend on PyTorch's random numbers.

    Reference:
        Musgrave, Belongie, Lim. PyTorch Metric Learning. arXiv:2008.09164; the method is that of
        its UniformHistogramMiner, which has no separate paper, and so are the defaults.
    """

    paper: ClassVar[str] = "Musgrave et al. 2020, PyTorch Metric Learning"
    random: ClassVar[bool] = True

    def __init__(self, num_bins: int = 100, pos_per_bin: int = 10, neg_per_bin: int = 10) -> None:
        super().__init__()
        sizes = {"num_bins": num_bins, "pos_per_bin": pos_per_bin, "neg_per_bin": neg_per_bin}
        for name, value in sizes.items():
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        self.num_bins = num_bins
        self.pos_per_bin = pos_per_bin
        self.neg_per_bin = neg_per_bin

    def pick(self, pairs: Pairs) -> Indices:
        """Return the pairs drawn of either kind."""
        d = squared_distances(pairs).sqrt()
        return (
            *self._draw(d, pairs.positive, self.pos_per_bin),
            *self._draw(d, pairs.negative, self.neg_per_bin),
        )

    def _draw(self, d: Tensor, of_kind: Tensor, count: int) -> Indices:
        a, other = of_kind.nonzero(as_tuple=True)
        if not len(a):
            return a, other
        bins, order = bin_of(d[a, other], self.num_bins).sort()
        size = torch.bincount(bins, minlength=self.num_bins)
        first = size.cumsum(0) - size
        filled = size > 0
        size, first = size[filled][:, None], first[filled][:, None]
        random = torch.rand(len(size), count, dtype=torch.float64, device=d.device)
        drawn = order[(first + (random * size).long()).flatten()]
        return a[drawn], other[drawn]


def bin_of(values: Tensor, bins: int) -> Tensor:
    """Return the bin of each value, between the smallest and the largest; the last if all equal."""
    low, high = values.min(), values.max()
    place = (values - low) / (high - low)
    return (place.nan_to_num(1.0) * bins).long().clamp_max(bins - 1)
