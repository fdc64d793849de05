"""Recall@k surrogate."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._ranking import above
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances


class RecallSurrogateLoss(AnchorLoss):
    """Maximise recall@k for several k, with a sigmoid in place of each of its two steps.

    With S the cosines, P(a) the positives of anchor a, G(a) its positives and negatives, s the
    sigmoid, and t and t_k temperatures, the soft rank of the positive p and the loss are::

        r_ap = 1 + sum_{j in G(a), j != p} s((S_aj - S_ap) / t)

        R_a(k) = min(k, sum_{p in P(a)} s((k - r_ap) / t_k)) / min(k, |P(a)|)

        L = mean_a of mean_k of 1 - R_a(k)

    over the anchors that have a positive and a negative. Here recall@k is the share of the
    positives among the first k. Even if all positives come first, the loss is not 0, as s(0) is
    1/2: with one positive and t_k = 1, it is 0.5 for k = 1 and 0.05 for k = 4.

    The time is N² times the positives of an anchor, and N³ on a GPU, which would have to wait for
    their number; the memory is N².

    Differs from the authors' code in:
        * the query itself. There it is one of the images that a positive is ranked among, so that
          all ranks are about 1 larger.
        * any batch is allowed. Theirs needs equally many images of each class, sorted by class.
        * similarity mixup is left out: it adds mixed images to the batch.

    Args:
        ks: the k; 1, 2, 4, 8, 16 in the authors' code.
        temperature: t, of the ranks; 0.01 there.
        k_temperature: t_k, of the recall; 1 there.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar from 0 to 1. A
        batch without positives or without negatives gives 0.

    Reference:
        Patel, Tolias, Matas. Recall@k Surrogate Loss with Large Batches and Similarity Mixup.
        CVPR 2022, arXiv:2108.11179; checked with the authors' code.
    """

    paper: ClassVar[str] = (
        "Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup"
    )
    related = "smooth_ap"
    kind = "list"
    cost = "N³"
    sampler = "m_per_class"

    def __init__(
        self,
        ks: tuple[int, ...] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        k_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not ks or min(ks) < 1:
            raise UserError(f"ks must be one or more numbers from 1 on, not {list(ks)}")
        require_positive(temperature=temperature, k_temperature=k_temperature)
        self.ks = tuple(ks)
        self.temperature = temperature
        self.k_temperature = k_temperature

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors of the mean over the k of 1 - recall."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        counted = above(scores, pairs, lambda gap: torch.sigmoid(gap / self.temperature))
        ranks = 1 + counted.positives + counted.negatives
        count = counted.valid.sum(1)
        missed = []
        for k in self.ks:
            found = torch.where(counted.valid, torch.sigmoid((k - ranks) / self.k_temperature), 0)
            missed.append(1 - found.sum(1).clamp_max(k) / count.clamp(1, k))
        valid = (count > 0) & pairs.negative.any(1)
        return [Mean.where(valid, torch.stack(missed).mean(0))]
