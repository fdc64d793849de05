"""Binomial deviance."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._neighbours import softplus
from ._shared import AnchorLoss, Masks, Mean, unit


class BinomialDevianceLoss(AnchorLoss):
    """Push cosines of positives above beta and those of negatives below it, softly.

    With s the cosines, over all positive and all negative pairs of the batch::

        L = mean_pos log(1 + exp(-alpha (s - beta))) + mean_neg log(1 + exp(alpha C (s - beta)))

    The means balance the two kinds, whatever their numbers, and C makes a violated negative weigh
    more. Each pair is independent: whether it is hard does not depend on the others.

    Args:
        alpha: steepness; 2, used by the authors of the histogram loss, as they answered to a
            question about their code.
        beta: the cosine that separates positives from negatives; 0.5, from the same source.
        negative_cost: C, how much steeper negatives are. 25 has no source that could be looked up.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A mean over no
        pairs is 0, so that a batch of one image gives 0. A pair counts as often as it was mined.

    Reference:
        Yi, Lei, Li. Deep Metric Learning for Practical Person Re-Identification. ICPR 2014,
        arXiv:1407.4979.
    """

    paper: ClassVar[str] = (
        "Yi et al. 2014, Deep Metric Learning for Practical Person Re-Identification"
    )
    related = "multi_similarity"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, alpha: float = 2.0, beta: float = 0.5, negative_cost: float = 25.0) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("negative_cost", negative_cost)):
            if not 0 < value < 1e9:
                raise UserError(f"{name} must be positive and below 1e9, not {value}")
        if not -1 <= beta <= 1:
            raise UserError(f"beta is a cosine: it must be from -1 to 1, not {beta}")
        self.alpha = alpha
        self.beta = beta
        self.negative_cost = negative_cost

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the sum of the two means."""
        positive, negative = pairs
        f = unit(anchors)
        g = f if gallery is anchors else unit(gallery)
        above = self.alpha * (f @ g.T - self.beta)
        pull, push = softplus(-above), softplus(self.negative_cost * above)
        return [
            Mean.where(positive, pull, pairs.positive_times),
            Mean.where(negative, push, pairs.negative_times),
        ]
