"""Neighbourhood components analysis."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class NCALoss(AnchorLoss):
    """Raise the probability that a neighbour drawn at random is of the same class.

    With D the squared Euclidean distances of the unnormalised embeddings, P(a) the positives of
    anchor a, s the scale, and the sum below over all other images that are used::

        p(i|a) = exp(-s D_ai) / sum_{k != a} exp(-s D_ak)
        L      = mean of -log sum_{i in P(a)} p(i|a)

    over the anchors that have a positive. It is computed as softplus of the log-sum over the
    negatives minus that over the positives. pytorch-metric-learning's NCALoss on these distances
    has the same value until p underflows, at -log p of about 103 in float32: there it drops the
    anchor, the worst one. For a batch without positives it gives NaN.

    Differs from the paper in:
        * the paper's first objective is the sum of p, not of its logarithm; it gives the logarithm
          as an alternative, which does not ignore an anchor whose p is near 0.
        * the paper has no s (it is 1): the length of the embeddings has its role.

    Args:
        scale: s.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0. The positives and the negatives of an anchor
        are sets: a pair that was mined more than once counts once.

    Reference:
        Goldberger, Roweis, Hinton, Salakhutdinov. Neighbourhood Components Analysis. NIPS 2004,
        section 2.
    """

    paper: ClassVar[str] = "Goldberger et al. 2004, Neighbourhood Components Analysis"
    related = "scalable_nca, matching_net"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        require_positive(scale=scale)
        self.scale = scale

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean of -log p over the anchors that have a positive."""
        positive, negative = pairs
        # Distances by products would be off by 1e-3 of the length for similar images.
        distance = torch.cdist(anchors, gallery, compute_mode="donot_use_mm_for_euclid_dist")
        logits = -self.scale * distance.square()
        to_positives = torch.where(positive, logits, _NOTHING).logsumexp(1)
        to_negatives = torch.where(negative, logits, _NOTHING).logsumexp(1)
        valid = positive.any(1)
        nll = -F.logsigmoid(to_positives - to_negatives)
        return [Mean.where(valid, nll)]
