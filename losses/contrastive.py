"""Contrastive loss."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, safe_sqrt, unit, unit_distances


class ContrastiveLoss(AnchorLoss):
    """Pull positives together, and push negatives apart up to a margin.

    With D the Euclidean distances of the L2-normalised embeddings, P and Q the positive and
    negative pairs, and Q' those of Q with D < margin::

        L = 1/|P| sum_{(a,p) in P} 1/2 D_ap² + 1/|Q'| sum_{(a,n) in Q'} 1/2 (margin - D_an)²

    pytorch-metric-learning's ContrastiveLoss has D and margin - D instead of half their squares, so
    that the gradient does not fade as a pair reaches its place.

    Differs from the paper in:
        * the embeddings are normalised, so that a margin means the same for every network.
        * the paper sums over given pairs, about as many of either kind. A batch has many more
          negatives than positives, most of them beyond the margin, so each kind has its own mean.

    Args:
        margin: in units of D, which is from 0 to 2; 1 in Caffe's layer, which made the loss common,
            and in PML. The paper has no value for normalised embeddings.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. Without
        positives only the second term remains, without negatives only the first. A pair counts as
        often as it was mined.

    Reference:
        Hadsell, Chopra, LeCun. Dimensionality Reduction by Learning an Invariant Mapping. CVPR
        2006, section 2.1.
    """

    paper: ClassVar[str] = (
        "Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping"
    )
    related = "margin, lifted_struct"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        require_positive(margin=margin)
        self.margin = margin

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the sum of both means."""
        positive, negative = pairs
        f = unit(anchors)
        squared = unit_distances(f, f if gallery is anchors else unit(gallery))
        short = (self.margin - safe_sqrt(squared)).clamp_min(0)
        near = negative & (short > 0)
        return [
            Mean.where(positive, squared / 2, pairs.positive_times),
            Mean.where(near, short.square() / 2, pairs.negative_times),
        ]
