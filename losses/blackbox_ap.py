"""Average precision and recall by blackbox differentiation of the ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._require import require_not_negative, require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances

_EQUAL = 1e-6  # cosines that differ by less are equal: rounding must not decide a rank


class BlackboxAPLoss(AnchorLoss):
    """Maximise the average precision of the true ranking, whose gradient is a finite difference.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, each of its n images
    has a score, which the margin makes harder, and a rank, from 1 for the highest::

        y_ap = S_ap - margin/2      y_an = S_an + margin/2      r = rank(y) / n

    With q_p the rank of p among the positives only, and v_p the number of negatives above it::

        L_a = 1 - mean_p of q_p / (n r_p)             measure="ap"
        L_a = mean_p of log(1 + log(1 + v_p))         measure="recall"       v_p = n r_p - q_p

    and L is the mean over the anchors that have a positive and a negative. The ranking is a step
    function. In place of its derivative, the **gradient** compares it with the ranking of scores
    that are moved as the loss would like, q constant::

        dL_a/dy = (rank(y + lambda dL_a/dr) / n - r) / lambda

    So it is not the derivative of the value, which has none. A small lambda moves few ranks, and
    each strongly. The time is N² log N, the memory N².

    Differs from the authors' code in:
        * lambda. There it is applied to the gradient of the mean over the N anchors, so that it
          depends on the batch size, and on all that multiplies the loss; here to each anchor's.
          Theirs is N times as large: 4 for batches of 128 is 0.03 here.
        * the margin for AP, which there is multiplied by the absolute value of a normal random
          number for each pair; for recall it is as here.
        * equal scores, within 1e-6, share the mean of their ranks; there their order decides.
        * earlier batches, which it keeps: use ``pml.CrossBatchMemory``.

    Args:
        measure: "ap", or "recall", with the weight log(1 + log(1 + v)) of the authors' code.
        lambda_val: lambda.
        margin: alpha of the paper, in units of cosine.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar, for "ap" from
        0 to 1. A batch without positives or without negatives gives 0.

    Reference:
        Rolinek, Musil, Paulus, Vlastelica, Michaelis, Martius. Optimizing Rank-based Metrics with
        Blackbox Differentiation. CVPR 2020, arXiv:1912.03500; checked with the authors' code. The
        defaults, lambda 4 and margin 0.02, are those for retrieval in the code of ROADMAP.
    """

    paper: ClassVar[str] = (
        "Rolinek et al. 2020, Optimizing Rank-based Metrics with Blackbox Differentiation"
    )
    related = "map_dlm"
    kind = "list"
    cost = "N² log N"
    sampler = "m_per_class"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_large_gaps": "a score that lambda moves past no other one has no gradient"
    }

    def __init__(
        self,
        measure: Literal["ap", "recall"] = "ap",
        lambda_val: float = 0.03125,  # 4 / 128
        margin: float = 0.02,
    ) -> None:
        super().__init__()
        if measure not in ("ap", "recall"):
            raise UserError(f'measure must be "ap" or "recall", not {measure!r}')
        require_positive(lambda_val=lambda_val)
        require_not_negative(margin=margin)
        self.measure = measure
        self.lambda_val = lambda_val
        self.margin = margin

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors that have a positive and a negative."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        valid = pairs.positive.any(1) & pairs.negative.any(1)
        with torch.no_grad():
            loss, gradient = self._ranked(scores, pairs)
        value = loss + ((scores - scores.detach()) * gradient).sum(1)
        return [Mean.where(valid, value)]

    def _ranked(self, scores: Tensor, pairs: Masks) -> tuple[Tensor, Tensor]:
        """Return L_a (N,) and its gradient with respect to S (N, M)."""
        positive, listed = pairs.positive, pairs.positive | pairs.negative
        y = scores + self.margin * (0.5 - positive.to(scores.dtype))
        ranks, among = _ranks(y, listed), _ranks(y, positive)
        n, share = _count(listed, y.dtype), 1 / _count(positive, y.dtype)
        if self.measure == "ap":
            loss, slope = 1 - among / ranks, among / ranks.square()
        else:
            above = ranks - among
            loss, slope = above.log1p().log1p(), 1 / ((1 + above.log1p()) * (1 + above))
        # r is ranks / n
        moved = _ranks(y + self.lambda_val * n * share * torch.where(positive, slope, 0), listed)
        gradient = (moved - ranks) / (n * self.lambda_val)
        loss = torch.where(positive, loss, 0).sum(1) * share.squeeze(1)
        return loss, torch.where(listed, gradient, 0)

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient in loops over the anchors and their lists, in float64.

        ``zoo.checks`` compares the gradient with it.
        """
        x, y = embeddings.detach().double().requires_grad_(), labels.tolist()
        f = F.normalize(x)
        s = (f @ f.T).tolist()
        to_cosines = torch.zeros(len(y), len(y), dtype=torch.float64)
        valid = 0
        for a in range(len(y)):
            others = [k for k in range(len(y)) if k != a]
            positives = [k for k in others if y[k] == y[a]]
            if not positives or len(positives) == len(others):
                continue
            valid += 1
            scores = {k: s[a][k] + self.margin * (0.5 - (y[k] == y[a])) for k in others}
            ranks = _rank_by_rank(scores)
            among = _rank_by_rank({p: scores[p] for p in positives})
            moved = dict(scores)
            for p in positives:
                if self.measure == "ap":
                    slope = among[p] / ranks[p] ** 2
                else:
                    v = torch.tensor(ranks[p] - among[p])
                    slope = float(1 / (1 + v.log1p()) / (1 + v))
                moved[p] += self.lambda_val * len(others) * slope / len(positives)
            for k, rank in _rank_by_rank(moved).items():
                to_cosines[a, k] = (rank - ranks[k]) / len(others) / self.lambda_val
        (gradient,) = torch.autograd.grad(f @ f.T, x, to_cosines / max(1, valid))
        return gradient


def _count(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the number of images in each row (N, 1), at least 1."""
    return images.sum(1, keepdim=True).clamp_min(1).to(dtype)


def _ranks(scores: Tensor, listed: Tensor) -> Tensor:
    """Return the rank of each score in its row (N, M), 1 for the highest; equal ones share it.

    A rank is 1 for itself, 1 for each score above and 1/2 for each equal one; 1 if not listed.
    """
    values = torch.where(listed, scores, -torch.inf)
    ordered = values.sort(1).values
    up_to = torch.searchsorted(ordered, values + _EQUAL, right=True)
    below = torch.searchsorted(ordered, values - _EQUAL)
    ranks = scores.shape[1] - up_to + (up_to - below + 1) / 2
    return torch.where(listed, ranks.to(scores.dtype), 1)


def _rank_by_rank(scores: dict[int, float]) -> dict[int, float]:
    return {
        i: 1
        + sum(s > score + _EQUAL for j, s in scores.items() if j != i)
        + sum(abs(s - score) <= _EQUAL for j, s in scores.items() if j != i) / 2
        for i, score in scores.items()
    }
