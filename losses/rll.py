"""Ranked list loss (RLL)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import AnchorLoss, Masks, Mean, safe_sqrt, unit, unit_distances

_NOTHING = -1e30  # its exponential is 0, and every number stays finite
_MOST_EXPONENT = 60  # exp(60) fits into float32 a trillion times


class RLLoss(AnchorLoss):
    """Pull positives into a sphere around the query, push negatives beyond a larger one.

    With d the Euclidean distances of the L2-normalised embeddings, for a query a, its positives
    outside the inner sphere and its negatives inside the outer one::

        P* = {i : d_ai > alpha - m}     w_ai = exp(Tp (d_ai - (alpha - m)))
        Q* = {j : d_aj < alpha}         w_aj = exp(Tn (alpha - d_aj))

        L_a = sum_P* w_ai (d_ai - (alpha - m)) / sum_P* w_ai
              + balance * sum_Q* w_aj (alpha - d_aj) / sum_Q* w_aj

    and L is the mean over the N queries. The weights are constants, and only the query receives a
    gradient: the other images are the gallery in which it is ranked. So the gradient is *not* the
    derivative of the value.

    Differs from pytorch-metric-learning's RankedListLoss, which halves both terms, passes the
    gradient to the weights and the gallery, and adds 1e-5 to the denominators.

    Differs from the authors' code (the layers that they published in 2019 and 2020), which has
        * half of both terms.
        * instead of 1/N, a weight of each query, larger where more of its images are misplaced:
          the sum of all its w_ai and w_aj, divided by that of all queries. ``query_weights`` is
          that. It changes the direction of the gradient, on random batches by a cosine of 0.5 to 1.
        * for a pair, the gradient f_a - f_i, which is that of the paper times d_ai.

    Args:
        alpha: radius of the outer sphere, from 0 to 2; 1.4 on CUB, 1.2 on Stanford Online Products.
        margin: m, the difference to the inner one; 0.2 on CUB, 0.4 on Stanford Online Products.
        temperature_neg: Tn, 10 in the paper; 0 weighs all negatives alike.
        temperature_pos: Tp, likewise of the positives.
        balance: of the negative term; 1 in the paper.
        query_gradient_only: False passes the gradient to the gallery as well.
        query_weights: whether queries are weighed as in the authors' code, see above, instead of
            equally, as in the paper. With it, a temperature times its largest difference of
            distances is at most 60, so that the sums do not overflow.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A query
        without any image in P* or Q* has 0 for that term, and counts in the mean. The positives and
        the negatives of an anchor are sets: a pair that was mined more than once counts once.

    Reference:
        Wang, Hua, Kodirov, Hu, Garnier, Robertson. Ranked List Loss for Deep Metric Learning.
        CVPR 2019, arXiv:1903.03238, section 3.
    """

    paper: ClassVar[str] = "Wang et al. 2019, Ranked List Loss for Deep Metric Learning"
    related = "margin, ice"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(
        self,
        alpha: float = 1.2,
        margin: float = 0.4,
        temperature_neg: float = 10.0,
        temperature_pos: float = 0.0,
        balance: float = 1.0,
        query_gradient_only: bool = True,
        query_weights: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= margin <= alpha <= 2:
            raise UserError(
                f"alpha {alpha} and margin {margin}: 0 <= margin <= alpha <= 2 is needed, as "
                "distances on the unit sphere are from 0 to 2"
            )
        if min(temperature_neg, temperature_pos, balance) < 0:
            raise UserError("temperature_neg, temperature_pos and balance must be at least 0")
        most = max(temperature_neg * alpha, temperature_pos * (2 - alpha + margin))
        if query_weights and most > _MOST_EXPONENT:
            raise UserError(
                f"query_weights: the largest weight would be exp({most:.0f}), and beyond "
                f"exp({_MOST_EXPONENT}) sums may overflow; lower the temperatures"
            )
        self.alpha = alpha
        self.margin = margin
        self.temperature_neg = temperature_neg
        self.temperature_pos = temperature_pos
        self.balance = balance
        self.query_gradient_only = query_gradient_only
        self.query_weights = query_weights

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the queries."""
        positive, negative = pairs
        queries = unit(anchors)
        others = queries if gallery is anchors else unit(gallery)
        if self.query_gradient_only:
            others = others.detach()
        distance = safe_sqrt(unit_distances(queries, others))
        too_far = distance - (self.alpha - self.margin)
        too_near = self.alpha - distance
        pull = _weighted(too_far, positive, self.temperature_pos)
        push = _weighted(too_near, negative, self.temperature_neg)
        terms = pull + self.balance * push
        if not self.query_weights:
            return [Mean.of(terms)]
        weights = _total(too_far, positive, self.temperature_pos)
        weights = weights + _total(too_near, negative, self.temperature_neg)
        return [Mean((weights * terms).sum(), weights.sum())]  # a sum is at least 1, or it is 0

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the paper's gradient, query by query, in loops."""
        n, inner = len(embeddings), self.alpha - self.margin
        gradients, weights = [], []
        for a in range(n):
            x = embeddings.detach().clone().requires_grad_()
            f = x / x.norm(dim=1, keepdim=True)
            terms: dict[bool, list[Tensor]] = {True: [], False: []}
            for b in range(n):
                other = f[b].detach() if self.query_gradient_only else f[b]
                d = (f[a] - other).norm() if b != a else x.new_zeros(())
                same = bool(labels[a] == labels[b])
                if b != a and same and d > inner:
                    terms[True].append(d - inner)
                elif not same and d < self.alpha:
                    terms[False].append(self.alpha - d)
            loss, weight = x.sum() * 0, 0.0
            for same, (temperature, share) in {
                True: (self.temperature_pos, 1.0),
                False: (self.temperature_neg, self.balance),
            }.items():
                if terms[same]:
                    hinges = torch.stack(terms[same])
                    w = torch.exp(temperature * hinges.detach())
                    loss = loss + share * (w * hinges).sum() / w.sum()
                    weight += float(w.sum())
            gradients.append(torch.autograd.grad(loss, x)[0])
            weights.append(weight if self.query_weights else 1.0)
        parts = [w / (sum(weights) or 1) * g for w, g in zip(weights, gradients, strict=True)]
        return torch.stack(parts).sum(0)


def _weighted(hinge: Tensor, of_kind: Tensor, temperature: float) -> Tensor:
    """Return for each query (N,) the weighted mean of the hinges above 0; 0 for none."""
    counts = of_kind & (hinge > 0)
    weights = torch.where(counts, temperature * hinge.detach(), _NOTHING).softmax(1)
    return (weights * torch.where(counts, hinge, 0)).sum(1)


def _total(hinge: Tensor, of_kind: Tensor, temperature: float) -> Tensor:
    """Return for each query (N,) the sum of the weights of the hinges above 0."""
    counts = of_kind & (hinge > 0)
    return torch.where(counts, temperature * hinge.detach(), _NOTHING).exp().sum(1)
