"""Shared by losses that classify by the cosine to a learned weight for each class."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn
from torch.func import functional_call

from ._adapter import PMLLoss
from ._classes import check_classes
from ._shared import Loss, OfImages, unit


class CosineClassifier(OfImages, Loss):
    """A loss on the cosines of embeddings and learned weights, one weight for each class.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
    """

    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.weight = nn.Parameter(torch.randn(num_classes, embedding_size))

    def cosines(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines (N, C) and the labels as indices; refuse labels without a weight."""
        check_classes(labels, self.num_classes)
        weight = unit(self.weight.to(embeddings.dtype))
        return unit(embeddings) @ weight.T, labels.long()


class PMLClassifier(PMLLoss):
    """A loss of PML that has weights for each class and uses only cosines.

    It refuses labels without weights, and normalises before PML, whose norms overflow at 1e19 in
    float32.

    Args:
        pml: the built loss of PML.
        num_classes: its classes.
    """

    kind: ClassVar[Literal["pair", "triplet", "list", "proxy", "classifier", "clustering"]] = (
        "classifier"  # proxies in a subclass
    )
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(self, pml: BaseMetricLossFunction, num_classes: int) -> None:
        super().__init__(pml)
        self.num_classes = num_classes

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the value of PML's loss for the embeddings on the unit sphere."""
        check_classes(labels, self.num_classes)
        # PML would convert the weights themselves, permanently, to the type of the embeddings.
        weights = {name: p.to(embeddings.dtype) for name, p in self.pml.named_parameters()}
        value: Tensor = functional_call(self.pml, weights, (unit(embeddings), labels.long()))
        return value
