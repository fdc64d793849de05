"""Adversarial BIER: learners from which no other can be predicted (A-BIER)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._levels import MIXES
from ._networks import OWN_OBJECTIVES, apply, gradient_only, perceptron
from ._require import require_not_negative
from ._shared import Mean, unit
from .bier import BIERLoss


class ABIERLoss(BIERLoss):
    """Boost learners as BIER does, and hide each learner from regressors on the others.

    For each pair of learners i < j, a regressor r of two layers predicts learner i from learner j.
    With f_i the embedding of a learner at length sqrt(d_i), its likeness to what is predicted is::

        L_sim = sum_{i < j} mean over images and numbers of (f_i * r_ji(f_j))²

    The regressors are trained to raise it, and the embedding to lower it, in the same step::

        embedding:   L_BIER + diversity L_sim
        regressors:  (weight_penalty L_weight - L_sim) / (1 + weight_penalty)
        L_weight = sum over the layers of mean_rows (|W_row|² - 1)² + max(0, |b|² - 1)

    ``L_weight`` keeps the regressors from winning by large weights. The value is that of the first
    line, and the network gets the gradient of this line alone; the paper says the same by gradient
    reversal.

    Differs from the paper in:
        * f_i has a fixed length. The paper uses plain activations, and keeps each row of the
          embedding's weights at length 1 so that they cannot vanish; a loss does not see these
          weights. The paper also stops the gradient of this term below the embedding layer, which a
          loss cannot.
        * the paper multiplies the regressors' objective by ``diversity``, which Adam undoes. Here
          it is divided by the sum of its weights, so that its steps are those of other networks.
        * see :class:`zoo.losses.bier.BIERLoss` for the boosting.

    Args:
        level_sizes: the sizes of the learners; 96, 160 and 256 in the paper.
        alpha: steepness, 2 in the paper.
        beta: the cosine that separates positives from negatives, 0.5 in the paper.
        negative_cost: C, 25 in the paper.
        boosting: False gives each learner the weight 1 for all pairs.
        diversity: the weight of ``L_sim``; 0 also stops the regressors. No source: it is of another
            size than the paper's.
        weight_penalty: of the regressors' weights, 100 by default in the authors' code.
        hidden: the inner size of the regressors, 512 in the authors' code.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. A batch of one image only
        has the adversarial part.

    Reference:
        Opitz, Waltner, Possegger, Bischof. Deep Metric Learning with BIER: Boosting Independent
        Embeddings Robustly. PAMI 2018, arXiv:1801.04815; details from the authors' code.
    """

    paper: ClassVar[str] = (
        "Opitz et al. 2018, Deep Metric Learning with BIER: Boosting Independent Embeddings "
        "Robustly"
    )
    related = "bier"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = True
    expected_failures: ClassVar = {"check_rotation": MIXES, "check_gradcheck": OWN_OBJECTIVES}
    check_arguments: ClassVar[dict[str, Any]] = {"hidden": 16}

    def __init__(
        self,
        level_sizes: Sequence[int],
        alpha: float = 2.0,
        beta: float = 0.5,
        negative_cost: float = 25.0,
        boosting: bool = True,
        diversity: float = 1e-5,
        weight_penalty: float = 100.0,
        hidden: int = 512,
    ) -> None:
        super().__init__(level_sizes, alpha, beta, negative_cost, boosting, diversity)
        require_not_negative(weight_penalty=weight_penalty)
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, not {hidden}")
        self.weight_penalty = weight_penalty
        self.pairs = list(combinations(range(len(self.level_sizes)), 2))
        self.regressors = nn.ModuleList(
            perceptron(self.level_sizes[j], hidden, self.level_sizes[i]) for i, j in self.pairs
        )

    def independence(self, mine: Sequence[Tensor], others: Sequence[Tensor]) -> list[Mean]:
        """Return the embedding's part; the regressors' part has the value 0."""
        if not self.diversity or not self.pairs:
            return []
        f = [unit(x) * x.shape[1] ** 0.5 for x in mine]
        n = len(f[0])
        hide = self._similarity(f, frozen=True)
        seek = self._similarity([x.detach() for x in f], frozen=False)
        penalty = torch.stack([_penalty(p.to(f[0].dtype)) for p in self.regressors.parameters()])
        sought = (self.weight_penalty * penalty.sum() * n - seek) / (1 + self.weight_penalty)
        total = self.diversity * hide + gradient_only(sought)
        return [Mean(total, f[0].new_full((), n))]

    def _similarity(self, f: Sequence[Tensor], frozen: bool) -> Tensor:
        """Return the sum over images of the mean square of f_i r_ji(f_j)."""
        regressors = zip(self.regressors, self.pairs, strict=True)
        found = [(f[i] * apply(r, f[j], frozen)).square().mean(1).sum() for r, (i, j) in regressors]
        return torch.stack(found).sum()


def _penalty(parameter: Tensor) -> Tensor:
    """Return the penalty of a matrix of weights, or of a bias."""
    if parameter.ndim == 1:
        return (parameter.square().sum() - 1).clamp_min(0)
    return (parameter.square().sum(1) - 1).square().mean()
