"""Large-margin softmax (L-Softmax)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ._cosine_classifier import lengths
from .sphereface import SphereFaceLoss


class LSoftmaxLoss(SphereFaceLoss):
    """Classify linearly with a multiplicative margin on the angle to the own class.

    With w the weights of the classes and x the embeddings, neither normalised, t_c the angle
    between x and w_c, and m the margin::

        L      = mean of -log( exp(|w_y| |x| psi(t_y)) / Z )
        Z      = exp(|w_y| |x| psi(t_y)) + sum_{c != y} exp(|w_c| |x| cos t_c)
        psi(t) = (-1)^k cos(m t) - 2k    for t from k pi/m to (k + 1) pi/m, which falls throughout

    With m = 1 it is the cross entropy of a linear layer without bias. With ``softening`` lambda,
    psi is replaced by (lambda cos t + psi) / (1 + lambda). With 0 it equals
    pytorch-metric-learning's LargeMarginSoftmaxLoss, which has no softening.

    Differs from the paper in:
        * the training starts near the plain softmax in the paper, with a large lambda that falls to
          a small one. Here ``softening`` is lambda for the whole run, by default 0.
        * the weights start normally distributed with a length of about 1; the paper does not say.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        margin: m, a whole number; from 2 to 4 in the paper.
        softening: lambda, see above.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class and the margin is 1. A gallery and mined pairs have no meaning for it.

    Reference:
        Liu, Wen, Yu, Yang. Large-Margin Softmax Loss for Convolutional Neural Networks. ICML 2016,
        arXiv:1612.02295, section 3.
    """

    paper: ClassVar[str] = (
        "Liu et al. 2016, Large-Margin Softmax Loss for Convolutional Neural Networks"
    )
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self, num_classes: int, embedding_size: int, margin: int = 4, softening: float = 0.0
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, softening)
        weight = torch.randn(num_classes, embedding_size) / embedding_size**0.5
        self.weight = nn.Parameter(weight)

    def _lengths(self, embeddings: Tensor) -> Tensor:
        return lengths(embeddings) * lengths(self.weight.to(embeddings.dtype)).T
