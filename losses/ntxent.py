"""NT-Xent, the normalised temperature-scaled cross entropy."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class NTXentLoss(AnchorLoss):
    """Match every positive against all negatives of its anchor, by cross entropy at a temperature.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, and t the
    temperature, the mean over the ordered positive pairs (a, p) whose anchor has a negative::

        L = mean of -log( exp(S_ap/t) / (exp(S_ap/t) + sum_{n in Q(a)} exp(S_an/t)) )

    which is softplus(Z_a - S_ap/t), Z_a the log-sum over the negatives: O(N²), and as steep at a
    gap of 128 as at one of 10. pytorch-metric-learning has log(ratio + tiny), which is capped at 87
    in float32, where its gradient ends, and a matrix of positive pairs x negative pairs. Otherwise
    the two are equal.

    Differs from the paper in:
        * SimCLR's positive is another view of the same image; here every other image of the class
          is a positive, each in its own term.

    Args:
        temperature: t; 0.1 for ImageNet in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0. A positive pair counts as often as it was
        mined; the negatives of an anchor are a set.

    Reference:
        Chen, Kornblith, Norouzi, Hinton. A Simple Framework for Contrastive Learning of Visual
        Representations. ICML 2020, arXiv:2002.05709, section 2.1.
    """

    paper: ClassVar[str] = (
        "Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations"
    )
    related = "npair_mc, supcon"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean of -log p over the positive pairs."""
        positive, negative = pairs
        f = unit(anchors)
        logits = f @ (f if gallery is anchors else unit(gallery)).T / self.temperature
        to_negatives = torch.where(negative, logits, _NOTHING).logsumexp(1, keepdim=True)
        valid = positive & negative.any(1, keepdim=True)
        nll = -F.logsigmoid(logits - to_negatives)
        return [Mean.where(valid, nll, pairs.positive_times)]
