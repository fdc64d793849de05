"""Lifted structured loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import Loss, Mean, masks

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class LiftedStructLoss(Loss):
    """Compare every positive pair with all negatives of both of its images.

    With D the Euclidean distances of the unnormalised embeddings, Q(i) the negatives of i and P the
    unordered positive pairs::

        J_ij = log( sum_{k in Q(i)} exp(m - D_ik) + sum_{l in Q(j)} exp(m - D_jl) ) + D_ij
        L    = 1/(2|P|) sum_{(i,j) in P} max(0, J_ij)²

    Each sum depends on only one image, so that the matrix J takes O(N²); pytorch-metric-learning
    gives the same value from a matrix of positive pairs x negative pairs.

    Args:
        margin: m, in units of distance; 1 in the authors' code.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. With a gallery (M, d), pairs consist of an
        image and a gallery item, and the second sum is over images of the batch that are negatives
        of the item. Pairs without any negative are left out; a batch of such pairs gives 0. A
        positive pair counts as often as it was mined; the negatives of an anchor are a set.

    Reference:
        Song, Xiang, Jegelka, Savarese. Deep Metric Learning via Lifted Structured Feature
        Embedding. CVPR 2016, arXiv:1511.06452, section 4; equal to the authors' code, which draws
        positive pairs and their negatives instead of classes.
    """

    paper: ClassVar[str] = (
        "Song et al. 2016, Deep Metric Learning via Lifted Structured Feature Embedding"
    )
    related = "npair_mc"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        if not margin >= 0:
            raise UserError(f"margin must be at least 0, not {margin}")
        self.margin = margin

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return half the mean of the squared hinges."""
        pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        positive, negative = pairs
        # Distances by products would be off by 1e-3 of the length for similar images.
        distance = torch.cdist(embeddings, ref_emb, compute_mode="donot_use_mm_for_euclid_dist")
        exponent = torch.where(negative, self.margin - distance, _NOTHING)
        of_anchor = exponent.logsumexp(1, keepdim=True)
        has_negative = negative.any(1, keepdim=True)
        if ref_emb is embeddings:
            of_other, other_has = of_anchor.T, has_negative.T
        else:
            of_other, other_has = exponent.logsumexp(0, keepdim=True), negative.any(0, keepdim=True)
        j = torch.logaddexp(of_anchor, of_other) + distance
        valid = positive & (has_negative | other_has)
        hinges = torch.where(valid, j, 0).clamp_min(0).square()
        total, number = Mean.where(valid, hinges / 2, pairs.positive_times)
        return total / number.clamp_min(1)
