"""Smooth-AP."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ._ranking import above
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances


class SmoothAPLoss(AnchorLoss):
    """Maximise average precision, with a sigmoid in place of each step of the ranking.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, and t the
    temperature, the numbers of positives and of negatives above the positive p are, softly::

        u_ap = sum_{i in P(a), i != p} sigmoid((S_ai - S_ap) / t)
        v_ap = sum_{j in Q(a)}         sigmoid((S_aj - S_ap) / t)

        L = mean_a of 1 - AP_a        AP_a = mean_{p in P(a)} of (1 + u_ap) / (1 + u_ap + v_ap)

    over the anchors that have a positive. With t to 0, AP is the average precision of the ranking.
    The time is N² times the positives of an anchor, and N³ on a GPU, which would have to wait for
    their number; the memory is N², as the sums are computed in blocks.

    A positive hardly moves unless another image is within a few t of it: far from 0 the sigmoid is
    flat, even if the ranking is wrong.

    Differs from pytorch-metric-learning's SmoothAPLoss and the authors' code in:
        * the query itself. There it is its own first positive. Here it is in neither list, as
          retrieval is evaluated. ``ref_emb`` with a copy of the batch gives their value.
        * any batch is allowed, in any order. Theirs needs equally many images of each class, sorted
          by class. PML does not notice another order, and takes the number of classes and that of
          the images of a class for each other, so that it is right only if they are equal.
        * their memory is N³.

    Args:
        temperature: t; 0.01 in the authors' code.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar from 0 to 1. A
        batch without positives or without negatives gives 0.

    Reference:
        Brown, Xie, Kalogeiton, Zisserman. Smooth-AP: Smoothing the Path Towards Large-Scale Image
        Retrieval. ECCV 2020, arXiv:2007.12163.
    """

    paper: ClassVar[str] = (
        "Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval"
    )
    related = "roadmap, recall_surrogate, blackbox_ap"
    kind = "list"
    cost = "N³"
    sampler = "m_per_class"

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors of 1 - AP."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        counted = above(scores, pairs, lambda gap: torch.sigmoid(gap / self.temperature))
        # 1 - (1 + u) / (1 + u + v), without the difference of two numbers near 1
        missed = counted.negatives / (1 + counted.positives + counted.negatives)
        count = counted.valid.sum(1)
        return [Mean.where(count > 0, missed.sum(1) / count.clamp_min(1))]
