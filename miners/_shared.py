"""The base class of the zoo's miners: pairs in full precision, triplets in blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from pytorch_metric_learning.miners import BaseMiner
from torch import Tensor

from zoo.support.precision import full_float32, upcast

_BLOCK_ELEMENTS = 1 << 22  # pairs x gallery in a block


class Pairs(NamedTuple):
    """A batch x (N, d), its gallery (M, d), and which pairs are positive and negative (N, M).

    The gallery is by default the batch itself, without pairs of an image with itself.
    """

    x: Tensor
    gallery: Tensor
    positive: Tensor
    negative: Tensor


Indices = tuple[Tensor, ...]


class Miner(BaseMiner):  # type: ignore[misc]
    """A miner of the zoo: the subclass writes only :meth:`pick`.

    It is called like the miners of pytorch-metric-learning, ``miner(embeddings, labels)`` or with
    ``ref_emb`` and ``ref_labels``, and returns what PML's losses and those of the zoo take as
    ``indices_tuple``: (anchors, positives, negatives), or (anchors, positives, anchors,
    negatives), int64 each, empty if nothing was picked. Half precision is mined in float32, to
    distinguish similar distances; nothing that it returns has a gradient.
    """

    paper: ClassVar[str] = ""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Indices:
        """Return the indices of the pairs or triplets to learn from.

        Args:
            embeddings: (N, d) network outputs.
            labels: (N,) integers, any values.
            ref_emb: (M, d) gallery; by default the batch itself, self-pairs left out.
            ref_labels: (M,) labels of the gallery.
        """
        if ref_emb is embeddings and ref_labels is labels:  # as some of PML's code calls it
            ref_emb = ref_labels = None
        with full_float32(embeddings.device):
            x = upcast(embeddings)
            gallery = None if ref_emb is None else ref_emb.to(x.dtype)
            indices: Indices = super().forward(x, labels, gallery, ref_labels)
        return indices

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> Indices:
        """Call :meth:`pick` the way PML's base class expects it."""
        same = labels[:, None] == ref_labels
        positive = same.clone()
        if ref_emb is embeddings:
            positive.fill_diagonal_(False)
        return self.pick(Pairs(embeddings, ref_emb, positive, ~same))

    @abstractmethod
    def pick(self, pairs: Pairs) -> Indices:
        """Return the chosen triplets or pairs; no gradient is recorded."""


def unit(x: Tensor) -> Tensor:
    """Return the rows of x on the unit sphere; a zero row stays zero, 1e30 does not overflow."""
    largest = x.abs().amax(dim=1, keepdim=True)
    scaled = x / largest.masked_fill(largest == 0, 1)
    norm: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / norm.clamp_min(1e-12)


def cosines(pairs: Pairs) -> Tensor:
    """Return (N, M) cosines."""
    return unit(pairs.x) @ unit(pairs.gallery).T


def squared_distances(pairs: Pairs) -> Tensor:
    """Return (N, M) squared Euclidean distances on the unit sphere, from 0 to 4.

    They are ``2 - 2 cosine``, computed about the mean of the gallery, so that float32 keeps their
    digits if all rows are near each other. A row of zeros is at 2 from all rows.
    """
    f, g = unit(pairs.x), unit(pairs.gallery)
    zero_f, zero_g = ((~rows.any(1)).to(f.dtype) for rows in (f, g))
    f, g = f - g.mean(0), g - g.mean(0)
    squares = (f.square().sum(1) + zero_f)[:, None] + g.square().sum(1) + zero_g
    return torch.addmm(squares, f, g.T, alpha=-2).clamp_min(0)


def split(positive: Tensor, negative: Tensor) -> Indices:
    """Return the pairs of two masks (N, M) as (anchors, positives, anchors, negatives)."""
    return (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))


def triplets(positive: Tensor, chosen: Callable[[Tensor, Tensor], Tensor]) -> Indices:
    """Return all triplets that are chosen, as (anchors, positives, negatives).

    Only positive pairs are processed, a block at a time, without a mask of N x N x N.

    Args:
        positive: (N, M) mask of the positive pairs.
        chosen: function from a block of them, anchors (B,) and positives (B,), to a mask (B, M) of
            the negatives of each.
    """
    a, p = positive.nonzero(as_tuple=True)
    block = max(1, _BLOCK_ELEMENTS // max(1, positive.shape[1]))
    found = [a.new_zeros(3, 0)]
    for start in range(0, len(a), block):
        anchors, positives = a[start : start + block], p[start : start + block]
        pair, negatives = chosen(anchors, positives).nonzero(as_tuple=True)
        found.append(torch.stack([anchors[pair], positives[pair], negatives]))
    return tuple(torch.cat(found, 1))
