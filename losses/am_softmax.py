"""Additive margin softmax."""

from __future__ import annotations

from typing import ClassVar

from pytorch_metric_learning.losses import CosFaceLoss as PMLCosFaceLoss

from ._cosine_classifier import PMLSoftmax
from ._require import require_not_negative, require_positive


class AMSoftmaxLoss(PMLSoftmax):
    """Classify by cosines with an additive margin: CosFace's loss at this paper's scale.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes, s the scale and
    m the margin::

        L = mean of -log( exp(s (f . w_y - m)) / Z )
        Z = exp(s (f . w_y - m)) + sum_{c != y} exp(s f . w_c)

    Two papers proposed it at the same time; it is pytorch-metric-learning's CosFaceLoss.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 30 in the paper.
        margin: m, in units of cosine; 0.35 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Wang, Cheng, Liu, Liu. Additive Margin Softmax for Face Verification. IEEE Signal Processing
        Letters 2018, arXiv:1801.05599.
    """

    paper: ClassVar[str] = "Wang et al. 2018, Additive Margin Softmax for Face Verification"
    related = "cosface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self, num_classes: int, embedding_size: int, scale: float = 30.0, margin: float = 0.35
    ) -> None:
        require_positive(scale=scale)
        require_not_negative(margin=margin)
        pml = PMLCosFaceLoss(num_classes, embedding_size, margin=margin, scale=scale)
        super().__init__(pml, num_classes)
        self.scale = scale
        self.margin = margin
