"""Circle loss."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class CircleLoss(AnchorLoss):
    """Weigh each similarity by how far it is from where it should be.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, and m the margin::

        L = mean_a of log(1 + sum_{n in Q(a)} exp( gamma w_an (S_an - m))
                            * sum_{p in P(a)} exp(-gamma w_ap (S_ap - (1 - m))))
        w_ap = [1 + m - S_ap]+       w_an = [S_an + m]+

    over the anchors that have a positive and a negative. As in the paper, the weights w are
    constants for the **gradient**, which therefore is not the derivative of the value.

    It equals pytorch-metric-learning's CircleLoss, except for a batch with at most one positive and
    one negative pair, which PML treats as empty.

    Args:
        m: the margin; 0.4 in the paper for fine-grained retrieval.
        gamma: the scale; 80 there.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0. The positives and the negatives of an anchor
        are sets: a pair that was mined more than once counts once.

    Reference:
        Sun, Cheng, Zhang, Zhang, Zheng, Wang, Wei. Circle Loss: A Unified Perspective of Pair
        Similarity Optimization. CVPR 2020, arXiv:2002.10857, section 3.
    """

    paper: ClassVar[str] = (
        "Sun et al. 2020, Circle Loss: A Unified Perspective of Pair Similarity Optimization"
    )
    related = "multi_similarity, am_softmax"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, m: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        if not -1 < m < 1:
            raise UserError(f"m must be between -1 and 1, not {m}")
        require_positive(gamma=gamma)
        self.m = m
        self.gamma = gamma

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors that have a positive and a negative."""
        positive, negative = pairs
        f = unit(anchors)
        cosines = f @ (f if gallery is anchors else unit(gallery)).T
        fixed = cosines.detach()
        to_positives = (1 + self.m - fixed).clamp_min(0) * (1 - self.m - cosines)
        to_negatives = (fixed + self.m).clamp_min(0) * (cosines - self.m)
        of_positives = torch.where(positive, self.gamma * to_positives, _NOTHING).logsumexp(1)
        of_negatives = torch.where(negative, self.gamma * to_negatives, _NOTHING).logsumexp(1)
        valid = positive.any(1) & negative.any(1)
        return [Mean.where(valid, -F.logsigmoid(-of_positives - of_negatives))]

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient with constant weights, from loops over the anchors, in float64.

        ``zoo.checks`` compares the gradient with it.
        """
        x = embeddings.detach().double().requires_grad_()
        f = F.normalize(x)
        s, y = (f @ f.T).detach(), labels.tolist()
        to_cosines = torch.zeros_like(s)
        valid = 0
        for a in range(len(y)):
            p = [i for i in range(len(y)) if i != a and y[i] == y[a]]
            n = [j for j in range(len(y)) if y[j] != y[a]]
            if not p or not n:
                continue
            valid += 1
            w_p, w_n = (1 + self.m - s[a, p]).clamp_min(0), (s[a, n] + self.m).clamp_min(0)
            e_p = -self.gamma * w_p * (s[a, p] - (1 - self.m))
            e_n = self.gamma * w_n * (s[a, n] - self.m)
            outer = torch.sigmoid(e_p.logsumexp(0) + e_n.logsumexp(0))
            to_cosines[a, p] = -outer * self.gamma * w_p * e_p.softmax(0)
            to_cosines[a, n] = outer * self.gamma * w_n * e_n.softmax(0)
        (gradient,) = torch.autograd.grad(f @ f.T, x, to_cosines / max(1, valid))
        return gradient
