"""Boosting independent embeddings robustly (BIER)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ._levels import OfLevels
from ._neighbours import softplus
from ._require import require_not_negative, require_positive
from ._shared import AnchorLoss, Masks, Mean, unit


class BIERLoss(OfLevels, AnchorLoss):
    """Train each learner most on the pairs that the learners before it get wrong.

    The embedding consists of M learners, f_1 to f_M. With s_m(a, b) the cosine of a pair in the
    embedding of learner m, and the margin of binomial deviance::

        z(s) = alpha (s - beta) for a positive pair, -alpha C (s - beta) for a negative one

    online gradient boosting (Algorithm 1 of the paper) mixes the learners by eta_m = 2 / (m + 1)
    and weighs each pair for the next learner by the slope of the loss of the mixture::

        S_0 = 0,  S_m = (1 - eta_m) S_(m-1) + eta_m s_m
        w_1 = 1,  w_(m+1) = sigmoid(-z(S_m))
        L   = 1/M sum_m (mean over positives of w_m log(1 + exp(-z(s_m)))
                         + mean over negatives of the same)

    The weights are constants: each learner is trained by its own loss only. They do not sum to 1,
    so that later learners learn less, and only from what is still wrong.

    The learners share a network, and are made independent by suppressing each other's activations.
    With q_m(n) the mean square of the numbers in f_m of image n, each divided by its mean square
    over the batch::

        L_div = sum_{m < l} mean_n q_m(n) q_l(n)

    With one learner, it is binomial deviance.

    Differs from the paper in:
        * w is the slope by the margin, from 0 to 1, as in the authors' code. By the cosine, as in
          Algorithm 1, it would have the further factors alpha and C.
        * the paper adds ``L_div`` on plain activations, and keeps each row of the embedding's
          weights at length 1 so that they cannot vanish. A loss does not see these weights; here
          each number has a mean square of 1 over the batch instead. The paper also stops the
          gradient of this term below the embedding layer, which a loss cannot.
        * the paper's other use of the term, to find the first weights of the layer, belongs to
          the network. A schedule of ``diversity`` that falls has a similar effect.
        * in a search all learners count the same. The authors' code weighs them by their sizes,
          which grow.

    Args:
        level_sizes: the sizes of the learners; 96, 160 and 256 in the paper.
        alpha: steepness, 2 in the paper.
        beta: the cosine that separates positives from negatives, 0.5 in the paper.
        negative_cost: C, 25 in the paper.
        boosting: False gives each learner the weight 1 for all pairs.
        diversity: the weight of ``L_div``. No source: it is of another size than the paper's.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. A mean over no pairs is 0,
        so that a batch of one image only gives ``L_div``, without a gradient.

    Reference:
        Opitz, Waltner, Possegger, Bischof. BIER - Boosting Independent Embeddings Robustly. ICCV
        2017. C = 25, eta and the form of the weights are also in the authors' code.
    """

    paper: ClassVar[str] = "Opitz et al. 2017, BIER - Boosting Independent Embeddings Robustly"
    related = "binomial_deviance, a_bier"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False  # diversity sees the lengths

    def __init__(
        self,
        level_sizes: Sequence[int],
        alpha: float = 2.0,
        beta: float = 0.5,
        negative_cost: float = 25.0,
        boosting: bool = True,
        diversity: float = 0.01,
    ) -> None:
        super().__init__(level_sizes)
        require_positive(alpha=alpha, negative_cost=negative_cost)
        require_not_negative(diversity=diversity)
        self.alpha = alpha
        self.beta = beta
        self.negative_cost = negative_cost
        self.boosting = boosting
        self.diversity = diversity

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the means of each learner, and the term of their independence."""
        mine, others = self.levels(anchors), self.levels(gallery)
        means = []
        mixture, weight = anchors.new_zeros(()), anchors.new_ones(())
        for m, (f, g) in enumerate(zip(mine, others, strict=True), start=1):
            cosines = unit(f) @ unit(g).T
            values = weight * softplus(-self._margin(cosines, pairs)) / len(mine)
            means += [Mean.where(mask, values) for mask in pairs]
            if self.boosting:
                mixture = torch.lerp(mixture.expand_as(cosines), cosines.detach(), 2 / (m + 1))
                weight = torch.sigmoid(-self._margin(mixture, pairs))
        return means + self.independence(mine, others)

    def independence(self, mine: Sequence[Tensor], others: Sequence[Tensor]) -> list[Mean]:
        """Return what makes the learners differ, as means over the images."""
        if not self.diversity:
            return []
        powers = [_relative_power(f, g) for f, g in zip(mine, others, strict=True)]
        total = torch.stack(powers).sum(0).square() - torch.stack(powers).square().sum(0)
        return [Mean.of(self.diversity * total / 2)]

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient pair by pair, in loops, for ``zoo.checks``."""
        x, y = embeddings.detach().double().requires_grad_(), labels.tolist()
        learners = [f / f.norm(dim=1, keepdim=True) for f in self.levels(x)]
        values: dict[bool, list[Tensor]] = {True: [], False: []}
        for a, b in itertools.permutations(range(len(y)), 2):
            slope = self.alpha if y[a] == y[b] else -self.alpha * self.negative_cost
            mixture, weight = 0.0, 1.0
            for m, f in enumerate(learners, start=1):
                cosine = f[a] @ f[b]
                values[y[a] == y[b]].append(weight * softplus(-slope * (cosine - self.beta)))
                mixture += 2 / (m + 1) * (float(cosine) - mixture)
                if self.boosting:
                    weight = 1 / (1 + math.exp(slope * (mixture - self.beta)))
        total = x.sum() * 0 + sum(torch.stack(v).mean() for v in values.values() if v)
        for mean in self.independence(self.levels(x), self.levels(x)):
            total = total + mean.total / mean.number
        (gradient,) = torch.autograd.grad(total, x)
        return gradient

    def _margin(self, similarity: Tensor, pairs: Masks) -> Tensor:
        above = self.alpha * (similarity - self.beta)
        return torch.where(pairs.positive, above, -self.negative_cost * above)


def _relative_power(f: Tensor, of: Tensor) -> Tensor:
    """Return for each row the mean of its squares, each divided by the mean of its column in of.

    Columns that are zero everywhere count as 0. All are divided by the largest number first, so
    that squares neither overflow nor vanish.
    """
    largest = of.detach().abs().amax(0)
    used = largest > 0
    largest = torch.where(used, largest, 1)
    power = (of / largest).square().mean(0)
    return torch.where(used, (f / largest).square() / torch.where(used, power, 1), 0).mean(1)
