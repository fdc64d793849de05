"""Log-ratio loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._neighbours import mean_where
from ._shared import Loss


class LogRatioLoss(Loss):
    """Make ratios of distances between embeddings equal those between labels, which are numbers.

    With D the squared Euclidean distances of the unnormalised embeddings, and
    D^y = (|y_a - y_i| + offset)² those of the labels, for an anchor a and any two others i, j::

        l(a, i, j) = ( log(D_ai / D_aj) - log(D^y_ai / D^y_aj) )²

    and L is the mean over the pairs i, j of an anchor, then over the anchors. With
    u_i = log D_ai - log D^y_ai a pair is (u_i - u_j)², whose mean over all pairs of n others is
    twice their variance with n - 1 in the denominator. So the triplets take O(N²)::

        L = mean_a 2 / (n - 1) sum_i (u_i - mean u)²

    Labels are ordinals here: age, pose, quality in steps. If they only identify classes, the loss
    still places classes with close numbers near each other.

    Differs from the paper in:
        * labels are integers; the paper's are continuous, so that no two are equal.
        * ``offset``: for images of the same label D^y would be 0, which has no logarithm. By
          default such images are one step apart, those of the next label two. The authors' code
          adds 1e-6, so that the same label is a million times nearer than the next.
        * the authors' code takes the roots of both distances, which makes a quarter of this.

    Args:
        offset: added to the difference of labels; 0 is the paper's formula and leaves pairs of the
            same label out.
        eps: added to D, so that the logarithm exists for equal images, which have no gradient.

    Shape:
        embeddings (N, d), labels (N,) any integers; returns a scalar. With a gallery ``ref_emb``
        (M, d), i and j are from it. Anchors with fewer than two others are left out; 0 if all are.
        Mined pairs have no meaning for it.

    Reference:
        Kim, Seo, Laptev, Cho, Kwak. Deep Metric Learning Beyond Binary Supervision. CVPR 2019,
        arXiv:1904.09626; checked with the authors' code.
    """

    paper: ClassVar[str] = "Kim et al. 2019, Deep Metric Learning Beyond Binary Supervision"
    related = "triplet_semihard"
    cost = "N²"
    sampler = "m_per_class"
    kind = "triplet"
    mined = False
    normalises = False
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_relabelling": "labels are numbers, and their differences count"
    }

    def __init__(self, offset: float = 1.0, eps: float = 1e-6) -> None:
        super().__init__()
        if not 0 <= offset < math.inf:
            raise UserError(f"offset must be at least 0, not {offset}")
        if not 0 < eps < math.inf:
            raise UserError(f"eps must be positive, not {eps}")
        self.offset = offset
        self.eps = eps

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the anchors of twice the variance of u."""
        # By products, D would be off by 1e-7 of the lengths, which is large for a small distance.
        d = torch.cdist(embeddings, ref_emb, compute_mode="donot_use_mm_for_euclid_dist")
        steps = (labels.long()[:, None] - ref_labels.long()).abs().to(d.dtype) + self.offset
        counts = steps > 0
        if ref_emb is embeddings:
            counts = counts.fill_diagonal_(False)
        u = (d.square() + self.eps).log() - 2 * steps.clamp_min(1e-30).log()
        n = counts.sum(1)
        mean = torch.where(counts, u, 0).sum(1) / n.clamp_min(1)
        spread = torch.where(counts, u - mean[:, None], 0).square().sum(1)
        return mean_where(2 * spread / (n - 1).clamp_min(1), n > 1)
