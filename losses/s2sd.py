"""Simultaneous similarity-based self-distillation (S2SD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._inner import require_any_size
from ._levels import MIXES, OfLevels
from ._networks import apply, perceptron
from ._require import require_not_negative, require_positive
from ._shared import Loss, unit
from .multi_similarity import MultiSimilarityLoss


class S2SDLoss(OfLevels, Loss):
    """Teach an embedding the similarities in larger embeddings, which are trained with it.

    The target networks g_i, of two layers, map features h to more numbers than the embedding f has.
    All are trained by the same loss, and f also learns to order the batch as the targets do. With
    S the matrix of cosines of a batch and softmax over each of its rows::

        L = 1/2 (L_metric(f) + mean_i L_metric(g_i(h)))
            + weight mean_i KL(g_i(h)) + feature_weight KL(h)
        KL(t) = T² mean over rows of sum p(t) log(p(t) / p(f)),   p(t) = softmax(S(t) / T)

    S(t) is a constant in KL: the targets teach, and are not taught. They are dropped after
    training.

    A loss sees only embeddings, so f is the first level, and h the last. With one level they are
    the same. With two (``model.slices``), h can be as large as the pooled features, of which it is
    a linear function; a search then uses both, and the result of the first level alone is that of
    the method.

    Differs from the paper in:
        * h is the embedding, or another linear function of the pooled features; the paper's targets
          see the features themselves.
        * the paper also pools the features by their maximum for the targets.

    Args:
        level_sizes: the size of the embedding, or of f and h.
        loss: L_metric; by default ``multi_similarity``, as in the authors' code. It may not have
            weights, as targets differ in size.
        targets: the sizes of the targets; four in the paper.
        weight: of the distillation, 50 in the paper.
        temperature: T, 1 in the paper.
        feature_weight: of the distillation from h, which needs two levels; 50 in the paper after
            1,000 iterations, which a schedule can say.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. Distillation needs no
        labels; a batch of one image gives what the loss gives.

    Reference:
        Roth, Milbich, Ommer, Cohen, Ghassemi. Simultaneous Similarity-based Self-Distillation for
        Deep Metric Learning. ICML 2021, arXiv:2009.08348; details from the authors' code.
    """

    paper: ClassVar[str] = (
        "Roth et al. 2021, Simultaneous Similarity-based Self-Distillation for Deep Metric Learning"
    )
    related = "multi_similarity"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False  # the targets see the lengths
    expected_failures: ClassVar = {
        "check_rotation": MIXES,
        "check_gradcheck": "the targets are constants where they teach the embedding, so that the "
        "gradient of their weights is not the derivative of the value; the tests of this loss "
        "compare it with that of their own losses",
    }
    check_arguments: ClassVar[dict[str, Any]] = {"targets": [8, 12]}

    def __init__(
        self,
        level_sizes: Sequence[int],
        loss: nn.Module | None = None,
        targets: Sequence[int] = (512, 1024, 1536, 2048),
        weight: float = 50.0,
        temperature: float = 1.0,
        feature_weight: float = 0.0,
    ) -> None:
        super().__init__(level_sizes)
        require_not_negative(weight=weight, feature_weight=feature_weight)
        require_positive(temperature=temperature)
        self.loss = loss or MultiSimilarityLoss()
        if any(True for _ in self.loss.parameters()):
            raise UserError(
                f"{type(self.loss).__name__} has weights of one size, and the targets have others; "
                "give a loss without weights"
            )
        if not targets or min(targets) < 1:
            raise UserError(f"targets must be one or more sizes of at least 1, not {list(targets)}")
        require_any_size(self.loss, targets, "s2sd")
        features = self.level_sizes[-1]
        self.targets = nn.ModuleList(perceptron(features, size, size) for size in targets)
        self.weight = weight
        self.temperature = temperature
        self.feature_weight = feature_weight

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the losses of the embedding and of its targets, and the distillation."""
        f, *_, h = self.levels(embeddings) if len(self.level_sizes) > 1 else (embeddings,) * 2
        targets = [apply(network, h) for network in self.targets]
        taught = [self._divergence(target, f) for target in targets]
        losses = [self.loss(target, labels) for target in targets]
        total = (self.loss(f, labels) + torch.stack(losses).mean()) / 2
        total = total + self.weight * torch.stack(taught).mean()
        distilled: Tensor = total + self.feature_weight * self._divergence(h, f)
        return distilled

    def _divergence(self, teacher: Tensor, pupil: Tensor) -> Tensor:
        """Return how far the similarities of the pupil are from those of the teacher."""
        wanted, given = (_cosines(x) / self.temperature for x in (teacher.detach(), pupil))
        divergence = F.kl_div(
            given.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True
        )
        scaled: Tensor = self.temperature**2 * divergence
        return scaled

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient with the targets' similarities as constants, for ``zoo.checks``."""
        x = embeddings.detach().double().requires_grad_()
        f, h = self.levels(x)[0], self.levels(x)[-1]
        targets = [apply(network, h) for network in self.targets]
        total = self.loss(f, labels) / 2
        pairs = [(t, self.weight / len(targets)) for t in targets] + [(h, self.feature_weight)]
        for target in targets:
            total = total + self.loss(target, labels) / 2 / len(targets)
        for teacher, weight in pairs:
            for row in range(len(x)):
                p, q = (
                    F.cosine_similarity(y[row], y, dim=1) / self.temperature for y in (teacher, f)
                )
                p = p.softmax(0).detach()
                share = weight * self.temperature**2 / len(x)
                total = total - share * (p * q.softmax(0).log()).sum()
        (gradient,) = torch.autograd.grad(total, x)
        return gradient


def _cosines(x: Tensor) -> Tensor:
    f = unit(x)
    return f @ f.T
