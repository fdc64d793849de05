"""Center loss."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._classes import check_classes
from ._require import require_not_negative
from ._shared import Loss


class CenterLoss(Loss):
    """Classify with a linear layer, and pull every image to a learned centre of its class.

    With W (C, d), b (C,) and the centres c (C, d) learned, and z = W x + b of unnormalised
    embeddings::

        L = mean of -z_y + log sum_j exp(z_j) + weight / 2 |x - c_y|²

    Differs from the paper in:
        * it is a mean, the paper's a sum.
        * the paper moves the centres by a separate rule, half way to the mean of their images in
          the batch (alpha 0.5). Here they are parameters that follow the gradient, which has the
          same zeros, with the learning rate of the optimiser. They start at 0.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        weight: lambda of the paper, 0.003.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar. A gallery and mined pairs
        have no meaning for it.

    Reference:
        Wen, Zhang, Li, Qiao. A Discriminative Feature Learning Approach for Deep Face Recognition.
        ECCV 2016, section 3.
    """

    paper: ClassVar[str] = (
        "Wen et al. 2016, A Discriminative Feature Learning Approach for Deep Face Recognition"
    )
    related = "cce"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False
    normalises = False

    def __init__(self, num_classes: int, embedding_size: int, weight: float = 0.003) -> None:
        super().__init__()
        require_not_negative(weight=weight)
        self.num_classes = num_classes
        self.weight = weight
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.centers = nn.Parameter(torch.zeros(num_classes, embedding_size))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy and the mean squared distance to the centres."""
        check_classes(labels, self.num_classes)
        targets = labels.long()
        entropy = F.cross_entropy(self.get_logits(embeddings), targets)
        centers = self.centers.to(embeddings.dtype)[targets]
        return entropy + self.weight / 2 * (embeddings - centers).square().sum(1).mean()

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes."""
        weight, bias = (p.to(embeddings.dtype) for p in self.classifier.parameters())
        return F.linear(embeddings, weight, bias)
