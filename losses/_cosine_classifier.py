"""Shared by losses that classify by the cosine to a learned weight for each class."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn
from torch.func import functional_call

from ._adapter import PMLLoss
from ._classes import check_classes
from ._shared import Loss, OfImages, safe_sqrt, unit


class CosineWeights(Loss):
    """A loss on the cosines of embeddings and learned weights, one weight for each class.

    It may depend on the batch as a whole; :class:`CosineClassifier` does not.

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
        return self.all_cosines(embeddings), labels.long()

    def all_cosines(self, embeddings: Tensor) -> Tensor:
        """Return the cosines (N, C) to the weights."""
        return unit(embeddings) @ unit(self.weight.to(embeddings.dtype)).T

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes, without a margin."""
        scale: Tensor | float = self.scale  # type: ignore[assignment]
        return scale * self.all_cosines(embeddings)


class CosineClassifier(OfImages, CosineWeights):
    """A mean over the images of a loss on their cosines, so that several processes can share it."""


def add_angle(cosine: Tensor, margin: Tensor | float) -> Tensor:
    """Return cos(t + m) of cosines cos t and margins m in radians, at most 90 degrees.

    Beyond t = pi - m, where it would rise again, it is replaced by cos t - m sin m. No angle is
    computed: cos(t + m) = cos t cos m - sin t sin m, where sin t has derivative 0 at t = 0.
    """
    m = margin if isinstance(margin, Tensor) else cosine.new_full((), margin)
    moved = cosine * m.cos() - safe_sqrt(1 - cosine.square()) * m.sin()
    return torch.where(cosine >= -m.cos(), moved, cosine - m * m.sin())


def lengths(embeddings: Tensor) -> Tensor:
    """Return the norms (N, 1), with derivative 0 at 0, where a norm has none."""
    nonzero = (embeddings != 0).any(1, keepdim=True)
    norms: Tensor = torch.where(nonzero, embeddings, 1).norm(dim=1, keepdim=True)
    return norms * nonzero


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


class PMLSoftmax(OfImages, PMLClassifier):
    """A mean over the images of a loss of PML that is a softmax of logits."""

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes, without a margin."""
        weights = {f"pml.{n}": p.to(embeddings.dtype) for n, p in self.pml.named_parameters()}
        logits: Tensor = functional_call(_Logits(self.pml), weights, (unit(embeddings),))
        return logits


class _Logits(nn.Module):
    """Calls the method of a loss of PML as if it were its forward pass."""

    def __init__(self, pml: BaseMetricLossFunction) -> None:
        super().__init__()
        self.pml = pml

    def forward(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.pml.get_logits(embeddings)
        return logits
