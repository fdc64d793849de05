"""Ranked list loss (RLL)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import AnchorLoss, Masks, Mean, safe_sqrt, unit, unit_distances

_NOTHING = -1e30  # its exponential is 0, and every number stays finite


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

    Differs from the authors' code by a factor: it also halves both terms.

    Args:
        alpha: radius of the outer sphere, from 0 to 2; 1.4 on CUB, 1.2 on Stanford Online Products.
        margin: m, the difference to the inner one; 0.2 on CUB, 0.4 on Stanford Online Products.
        temperature_neg: Tn, 10 in the paper; 0 weighs all negatives alike.
        temperature_pos: Tp, likewise of the positives.
        balance: of the negative term; 1 in the paper.
        query_gradient_only: False passes the gradient to the gallery as well.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A query
        without any image in P* or Q* has 0 for that term, and counts in the mean.

    Reference:
        Wang, Hua, Kodirov, Hu, Garnier, Robertson. Ranked List Loss for Deep Metric Learning.
        CVPR 2019, arXiv:1903.03238, section 3.
    """

    paper: ClassVar[str] = "Wang et al. 2019, Ranked List Loss for Deep Metric Learning"
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
    ) -> None:
        super().__init__()
        if not 0 <= margin <= alpha <= 2:
            raise UserError(
                f"alpha {alpha} and margin {margin}: 0 <= margin <= alpha <= 2 is needed, as "
                "distances on the unit sphere are from 0 to 2"
            )
        if min(temperature_neg, temperature_pos, balance) < 0:
            raise UserError("temperature_neg, temperature_pos and balance must be at least 0")
        self.alpha = alpha
        self.margin = margin
        self.temperature_neg = temperature_neg
        self.temperature_pos = temperature_pos
        self.balance = balance
        self.query_gradient_only = query_gradient_only

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
        return [Mean.of(pull + self.balance * push)]

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the paper's gradient, query by query, in loops."""
        grad = torch.zeros_like(embeddings)
        n, inner = len(embeddings), self.alpha - self.margin
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
            for same, (temperature, share) in {
                True: (self.temperature_pos, 1.0),
                False: (self.temperature_neg, self.balance),
            }.items():
                if terms[same]:
                    hinges = torch.stack(terms[same])
                    w = torch.exp(temperature * hinges.detach())
                    loss = share / n * (w * hinges).sum() / w.sum()
                    grad += torch.autograd.grad(loss, x, retain_graph=True)[0]
        return grad


def _weighted(hinge: Tensor, of_kind: Tensor, temperature: float) -> Tensor:
    """Return for each query (N,) the weighted mean of the hinges above 0; 0 for none."""
    counts = of_kind & (hinge > 0)
    weights = torch.where(counts, temperature * hinge.detach(), _NOTHING).softmax(1)
    return (weights * torch.where(counts, hinge, 0)).sum(1)
