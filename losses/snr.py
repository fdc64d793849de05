"""Contrastive loss on the signal-to-noise ratio (SNR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ._require import require_not_negative, require_positive
from ._shared import AnchorLoss, Masks, Mean

_FLAT = 1e-12  # of a squared length: below, a variance is rounding in float32
_NOTHING = 1e-30  # a batch whose entries are all smaller is one of zeros


class SNRLoss(AnchorLoss):
    """Treat the difference from the anchor as noise, and compare its variance with the anchor's.

    With var the variance over the entries of a vector, P and Q the positive and negative pairs, and
    Q' those of Q whose distance is below the margin::

        D_ab = var(x_b - x_a) / var(x_a)
        L    = 1/|P| sum_{(a,p) in P} D_ap + 1/|Q'| sum_{(a,n) in Q'} (margin - D_an)
             + zero_mean_weight / N sum_a |sum_m x_am|

    The last term pulls the mean of an embedding's entries to 0. The embeddings are not normalised.

    pytorch-metric-learning's ContrastiveLoss with SNRDistance is the first line. It keeps N x N x d
    differences instead of N x N, has no last term, and divides by 0 if an embedding has equal
    entries; here such an anchor is left out, and so is one whose entries vary by less than a
    millionth of the largest entry of the batch.

    Differs from the paper in:
        * the sums are means, separately for each kind of pair.
        * 1 for the margin, as in PML, and 0.005 for the last term are not known to be the paper's.

    Args:
        margin: in units of D.
        zero_mean_weight: lambda of the paper; 0 leaves the term out.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without any pairs has only the last term. A pair counts as often as it was mined.

    Reference:
        Yuan, Deng, Tang, Tang, Chen. Signal-to-Noise Ratio: A Robust Distance Metric for Deep
        Metric Learning. CVPR 2019, arXiv:1904.02616, section 3.
    """

    paper: ClassVar[str] = (
        "Yuan et al. 2019, Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning"
    )
    related = "lifted_struct"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_rotation": "a variance over the entries of an embedding depends on the axes"
    }

    def __init__(self, margin: float = 1.0, zero_mean_weight: float = 0.005) -> None:
        super().__init__()
        require_positive(margin=margin)
        require_not_negative(zero_mean_weight=zero_mean_weight)
        self.margin = margin
        self.zero_mean_weight = zero_mean_weight

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return both means and the term of the entries' sums."""
        positive, negative = pairs
        # A common factor changes no ratio, and keeps squares within float32's range.
        largest = torch.maximum(anchors.detach().abs().max(), gallery.detach().abs().max())
        scale = torch.where(largest > _NOTHING, largest, torch.inf)
        x = _centred(anchors / scale)
        others = x if gallery is anchors else _centred(gallery / scale)
        signal = x.square().sum(1, keepdim=True)
        lengths = (anchors.detach() / scale).square().sum(1, keepdim=True)
        varies = signal > _FLAT * lengths.clamp_min(1)
        # Distances by products would be off by 1e-3 of the length for similar images.
        noise = torch.cdist(x, others, compute_mode="donot_use_mm_for_euclid_dist").square()
        distance = noise / torch.where(varies, signal, 1)
        short = (self.margin - distance).clamp_min(0)
        positive, near = positive & varies, negative & varies & (short > 0)
        sums = self.zero_mean_weight * anchors.sum(1).abs()
        return [
            Mean.where(positive, distance, pairs.positive_times),
            Mean.where(near, short, pairs.negative_times),
            Mean.of(sums),
        ]


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)
