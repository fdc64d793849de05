"""Angular loss."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._shared import Loss, Mean, masks, unit

_MOST_DEGREES = 70  # above it, the terms of the sum exceed the range of float32


class AngularLoss(Loss):
    """Bound the angle at the negative of the triangle that a triplet makes.

    With f the L2-normalised embeddings, t = tan² alpha, P and Q(a) the ordered positive pairs and
    the negatives of anchor a::

        g_apn = 4 t (f_a + f_p) . f_n - 2 (1 + t) f_a . f_p
        L     = 1/|P| sum_{(a,p) in P} log(1 + sum_{n in Q(a)} exp(g_apn))

    exp(g_apn) is a product of one factor for (a, n) and one for (p, n), so that the sum over n is a
    product of two matrices, and the memory O(N²). pytorch-metric-learning's AngularLoss, which
    keeps a row for each positive pair, multiplies normalised anchors by unnormalised embeddings; if
    the embeddings are normalised first, it gives the same.

    Args:
        alpha: in degrees, from 0 to 70. 45 is common in public code; the paper tries several.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A batch without positives or without
        negatives gives 0. A gallery has no meaning for it. A positive pair counts as often as it
        was mined; the negatives of an anchor are a set.

    Reference:
        Wang, Zhou, Wen, Liu, Lin. Deep Metric Learning with Angular Loss. ICCV 2017,
        arXiv:1708.01682, section 3.
    """

    paper: ClassVar[str] = "Wang et al. 2017, Deep Metric Learning with Angular Loss"
    related = "npair_mc"
    sampler = "m_per_class"
    kind = "triplet"
    cost = "N³"
    gallery = False

    def __init__(self, alpha: float = 45.0) -> None:
        super().__init__()
        if not 0 < alpha <= _MOST_DEGREES:
            raise UserError(f"alpha must be above 0 and at most {_MOST_DEGREES}°, not {alpha}")
        self.alpha = alpha

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the positive pairs."""
        pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        positive, negative = pairs
        t = math.tan(math.radians(self.alpha)) ** 2
        f = unit(embeddings)
        cosines = f @ f.T
        # An anchor's factors are at most 1, reached at its nearest negative; those of a positive
        # at most 1 too: the sum is at least exp(-8 t), and no exponential overflows.
        nearest = torch.where(negative, cosines, -1).detach().amax(1, keepdim=True)
        of_anchor = torch.where(negative, 4 * t * (cosines - nearest), -torch.inf).exp()
        of_positive = (4 * t * (cosines - 1)).exp()
        valid = positive & negative.any(1, keepdim=True)
        total = torch.where(valid, of_anchor @ of_positive.T, 1).log()
        exponent = total + 4 * t * (nearest + 1) - 2 * (1 + t) * cosines
        sums, number = Mean.where(valid, -F.logsigmoid(-exponent), pairs.positive_times)
        return sums / number.clamp_min(1)
