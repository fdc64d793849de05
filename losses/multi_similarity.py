"""Multi-similarity loss."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class MultiSimilarityLoss(AnchorLoss):
    """Weigh each pair by its own similarity and by that of the other pairs of its anchor.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a::

        L = mean_a of  1/alpha log(1 + sum_{p in P(a)} exp(-alpha (S_ap - base)))
                     + 1/beta  log(1 + sum_{n in Q(a)} exp( beta  (S_an - base)))

    over all anchors. Use it with its miner, as the paper does: ``miner: multi_similarity``.

    It equals pytorch-metric-learning's MultiSimilarityLoss, except for a batch with at most one
    positive and one negative pair, which PML treats as empty.

    Args:
        alpha: of the positives; 2 in the paper and in the authors' code.
        beta: of the negatives; 50 in the paper, 40 in the authors' code.
        base: lambda of the paper, a cosine; 0.5 in the authors' code. So the defaults, which are
            also PML's, are of two sources; those of the authors' code are 2, 40 and 0.5.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. Without
        positives only the second term remains, without negatives only the first. The positives and
        the negatives of an anchor are sets: a pair that was mined more than once counts once.

    Reference:
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep
        Metric Learning. CVPR 2019, arXiv:1904.06627, section 4.
    """

    paper: ClassVar[str] = (
        "Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting for Deep Metric "
        "Learning"
    )
    related = "binomial_deviance, circle"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> None:
        super().__init__()
        require_positive(alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors."""
        positive, negative = pairs
        f = unit(anchors)
        above = f @ (f if gallery is anchors else unit(gallery)).T - self.base
        pull = _soft_sum(-self.alpha * above, positive) / self.alpha
        push = _soft_sum(self.beta * above, negative) / self.beta
        return [Mean.of(pull + push)]


def _soft_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return log(1 + sum exp x) of each row, over the mask; 0 where that is empty."""
    return -F.logsigmoid(-torch.where(mask, x, _NOTHING).logsumexp(1))
