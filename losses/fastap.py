"""FastAP."""

from __future__ import annotations

from typing import ClassVar

import torch
from pytorch_metric_learning.losses import FastAPLoss as PMLFastAPLoss
from torch import Tensor

from zoo.errors import UserError

from ._adapter import PMLLoss
from ._shared import unit


class FastAPLoss(PMLLoss):
    """Maximise average precision, made differentiable by soft histograms of distances.

    With the squared distances of the L2-normalised embeddings, from 0 to 4, counted into nodes by
    linear interpolation, h+ the histogram of an anchor's positives, and H+ and H the cumulative
    histograms of its positives and of all others::

        L = mean_a of 1 - 1/|P(a)| sum_j h+_j H+_j / H_j

    over the anchors that have a positive. It is pytorch-metric-learning's FastAPLoss, whose memory
    is num_bins times a matrix of all pairs.

    Args:
        num_bins: intervals from 0 to 4; 10 in the paper.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A batch without positives or without
        negatives gives 0. A gallery and mined pairs have no meaning for it.

    Reference:
        Cakir, He, Xia, Kulis, Sclaroff. Deep Metric Learning to Rank. CVPR 2019.
    """

    paper: ClassVar[str] = "Cakir et al. 2019, Deep Metric Learning to Rank"
    related = "histogram, smooth_ap"
    cost = "N²"
    sampler = "m_per_class"
    kind = "list"
    gallery = False
    mined = False

    def __init__(self, num_bins: int = 10) -> None:
        if num_bins < 1:
            raise UserError(f"num_bins must be at least 1, not {num_bins}")
        super().__init__(PMLFastAPLoss(num_bins=num_bins))
        self.num_bins = num_bins

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the value of PML's loss for the embeddings on the unit sphere."""
        f = unit(embeddings)
        value = super().value(f, labels, None, f, labels)
        # Without a negative, precision is 1, but in PML's sums only up to rounding.
        return torch.where((labels != labels[0]).any(), value, value * 0)
