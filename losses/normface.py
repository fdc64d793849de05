"""NormFace: softmax on cosines with a learned scale."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._cosine_classifier import CosineClassifier
from ._require import require_positive


class NormFaceLoss(CosineClassifier):
    """Classify by cosines, with a scale that is learned along with the weights.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes and s the
    scale::

        L = mean of -log( exp(s f . w_y) / sum_c exp(s f . w_c) )

    With a fixed scale it equals pytorch-metric-learning's NormalizedSoftmaxLoss with temperature
    1/s.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s at the start; 10 in the authors' code, while the default, 20, is PML's. The loss of
            C classes cannot fall below log(1 + (C - 1) exp(-s C / (C - 1))), the paper's bound, so
            that a small one hardly learns.
        learn_scale: whether s is learned, as in the paper. False keeps it.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Wang, Xiang, Cheng, Yuille. NormFace: L2 Hypersphere Embedding for Face Verification. ACM MM
        2017, arXiv:1704.06369, section 3.3.
    """

    paper: ClassVar[str] = (
        "Wang et al. 2017, NormFace: L2 Hypersphere Embedding for Face Verification"
    )
    related = "heated_up, cosface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 20.0,
        learn_scale: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        require_positive(scale=scale)
        self.scale = nn.Parameter(torch.tensor(float(scale)), requires_grad=learn_scale)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy of the scaled cosines."""
        cosines, targets = self.cosines(embeddings, labels)
        return F.cross_entropy(self.scale.to(cosines.dtype) * cosines, targets)
