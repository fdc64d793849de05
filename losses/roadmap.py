"""ROADMAP: an upper bound of the AP loss, and calibrated cosines."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._ranking import above
from ._require import require_not_negative, require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances

_EQUAL = 1e-6  # cosines that differ by less are equal: rounding must not decide a rank


class ROADMAPLoss(AnchorLoss):
    """Maximise a lower bound of average precision, and give all anchors the same scale of cosines.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, and s the sigmoid,
    the numbers of positives and of negatives above the positive p are::

        u_ap = sum_{i in P(a), i != p} [S_ai > S_ap]        v_ap = sum_{j in Q(a)} H(S_aj - S_ap)

        H(x) = s(x/t)                                for x <= 0
               s(x/t) + 1/2                          for 0 < x <= delta
               rho (x - delta) + s(delta/t) + 1/2    for x > delta

        AP_a = mean_{p in P(a)} of (1 + u_ap) / (1 + u_ap + v_ap)

        L = (1 - weight) mean_a of 1 - AP_a
            + weight (mean of [alpha - S_ap]+ over the positive pairs below alpha
                      + mean of [S_an - beta]+ over the negative pairs above beta)

    over the anchors that have a positive. H is at least the step of the true rank, so that 1 - AP_a
    is never smaller than with the true ranks; and it still has a slope where a negative is far
    above, where the sigmoid of Smooth-AP is flat. u has no gradient. The second part lets a ranking
    that is right within batches be right across them.

    The time is N² times the positives of an anchor, and N³ on a GPU; the memory is N².

    Differs from the authors' code in:
        * the query itself, which there is its own first positive.
        * equal cosines. Here equal positives do not count each other and equal negatives count 1,
          so that the bound holds; there they count 1 and 1/2. Cosines are equal within 1e-6.
        * the value of H at delta+, there 1.44 for t = 0.01 and delta = 0.05, while at delta- it is
          1.4933. Here H is continuous.
        * a factor: both parts have the weight 1 there.

    As there, the second part is a mean over the pairs that are beyond their margin, not over all.

    Args:
        temperature: t; 0.01 in the authors' code, as rho 100 and delta 0.05.
        rho: the slope of H from delta on.
        delta: from which difference of cosines on H is straight.
        weight: of the second part, from 0 to 1; 0 is the paper's SupAP.
        alpha: positives should be more similar than this; 0.9 in the authors' code.
        beta: negatives should be less similar than this; 0.6 there.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. Without
        positives or without negatives the first part is 0; a batch of one image gives 0.

    Reference:
        Ramzi, Thome, Rambour, Audebert, Bitot. Robust and Decomposable Average Precision for Image
        Retrieval. NeurIPS 2021, arXiv:2110.01445; checked with the authors' code.
    """

    paper: ClassVar[str] = (
        "Ramzi et al. 2021, Robust and Decomposable Average Precision for Image Retrieval"
    )
    related = "smooth_ap"
    kind = "list"
    cost = "N³"
    sampler = "m_per_class"

    def __init__(
        self,
        temperature: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        weight: float = 0.5,
        alpha: float = 0.9,
        beta: float = 0.6,
    ) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        require_not_negative(rho=rho, delta=delta)
        if not 0 <= weight <= 1:
            raise UserError(f"weight must be from 0 to 1, not {weight}")
        for name, cosine in (("alpha", alpha), ("beta", beta)):
            if not -1 <= cosine <= 1:
                raise UserError(f"{name} is a cosine: it must be from -1 to 1, not {cosine}")
        self.temperature = temperature
        self.rho = rho
        self.delta = delta
        self.weight = weight
        self.alpha = alpha
        self.beta = beta

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors of 1 - AP, and those over pairs beyond their margin."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        counted = above(scores, pairs, _step, self._bound)
        missed = counted.negatives / (1 + counted.positives + counted.negatives)
        count = counted.valid.sum(1)
        ap = Mean.where(count > 0, missed.sum(1) / count.clamp_min(1))
        low, high = self.alpha - 1 - scores, scores + 1 - self.beta
        pull = Mean.where(pairs.positive & (low > 0), low, pairs.positive_times)
        push = Mean.where(pairs.negative & (high > 0), high, pairs.negative_times)
        weights = (1 - self.weight, self.weight, self.weight)
        means = zip(weights, (ap, pull, push), strict=True)
        return [Mean(weight * total, number) for weight, (total, number) in means]

    def _bound(self, gap: Tensor) -> Tensor:
        """Return H of each gap."""
        curved = torch.sigmoid(gap.clamp_max(self.delta) / self.temperature)
        return curved + (gap > -_EQUAL) * 0.5 + self.rho * (gap - self.delta).clamp_min(0)


def _step(gap: Tensor) -> Tensor:
    return (gap > _EQUAL).to(gap.dtype)
