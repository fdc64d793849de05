"""Mean average precision by a structured support vector machine (mAP-SSVM)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ._ap_inference import Lists
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances


class MAPSSVMLoss(AnchorLoss):
    """Score the right ranking above every other one, by a margin of how wrong that one is.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, a ranking y has
    y_pn = 1 where the positive p is above the negative n, else -1. Its score and the loss are::

        F_a(y) = mean_{p in P(a), n in Q(a)} of y_pn (S_ap - S_an)

        L = mean_a of max_y [F_a(y) + margin (1 - AP(y))] - F_a(y*)

    where y* has all positives first, over the anchors that have a positive and a negative. L is at
    least margin times 1 - AP of the ranking by S, and 0 if y* is better than all others by the
    margin. The maximum over all rankings is found exactly, by dynamic programming: time N² times
    the positives of an anchor, and N³ on a GPU, which would have to wait for their number.

    Differs from the authors' code in:
        * the ranking. There, the table of the dynamic programme's choices is used as y, also where
          the best ranking does not pass; the two nearly always agree.
        * a factor on F of the best ranking, there 10 in the configuration for Omniglot.

    Args:
        margin: of a ranking whose AP is 0; 1 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0.

    Reference:
        Triantafillou, Zemel, Urtasun. Few-Shot Learning Through an Information Retrieval Lens.
        NIPS 2017, arXiv:1707.02610; checked with the authors' code. The maximum over the rankings
        is that of Song, Schwing, Zemel, Urtasun. Training Deep Neural Networks via Direct Loss
        Minimization. ICML 2016, arXiv:1511.06411.
    """

    paper: ClassVar[str] = (
        "Triantafillou et al. 2017, Few-Shot Learning Through an Information Retrieval Lens"
    )
    related = "map_dlm"
    kind = "list"
    cost = "N³"
    sampler = "m_per_class"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        require_positive(margin=margin)
        self.margin = margin

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors that have a positive and a negative."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        lists = Lists.of(scores, pairs)
        worst = lists.maximise(self.margin)
        value = lists.score(worst) + self.margin * lists.loss(worst)
        right = lists.score(torch.zeros_like(worst))
        return [Mean.where(pairs.positive.any(1) & pairs.negative.any(1), value - right)]
