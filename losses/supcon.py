"""Supervised contrastive loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class SupConLoss(AnchorLoss):
    """Raise the mean log-probability of all positives of an anchor among all other images.

    With S the cosines, P(a) the positives of anchor a, A(a) all positives and negatives, and t the
    temperature, the paper's L_out::

        L = mean_a of -1/|P(a)| sum_{p in P(a)} log( exp(S_ap/t) / sum_{k in A(a)} exp(S_ak/t) )

    over the anchors that have a positive and a negative. pytorch-metric-learning's SupConLoss takes
    the mean over the anchors whose term is not 0, and so rises when one of them rounds to 0, as
    well placed pairs do in float32; otherwise the two are equal.

    Differs from the paper in:
        * it is a mean over anchors, the paper's a sum.
        * an anchor without negatives is left out; its term would push its positives apart evenly.

    Args:
        temperature: t; 0.1 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0. The positives and the negatives of an anchor
        are sets: a pair that was mined more than once counts once.

    Reference:
        Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan. Supervised Contrastive
        Learning. NeurIPS 2020, arXiv:2004.11362, section 3.2.
    """

    paper: ClassVar[str] = "Khosla et al. 2020, Supervised Contrastive Learning"
    related = "ntxent"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors that have a positive and a negative."""
        positive, negative = pairs
        f = unit(anchors)
        logits = f @ (f if gallery is anchors else unit(gallery)).T / self.temperature
        to_all = torch.where(positive | negative, logits, _NOTHING).logsumexp(1, keepdim=True)
        nll = torch.where(positive, to_all - logits, 0).sum(1) / positive.sum(1).clamp_min(1)
        valid = positive.any(1) & negative.any(1)
        return [Mean.where(valid, nll)]
