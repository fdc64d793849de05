"""The confidence penalty, added to a loss that classifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from zoo.errors import UserError

from ._require import require_not_negative, require_positive
from ._shared import Loss

_OF_PML = (pml.LargeMarginSoftmaxLoss, pml.NormalizedSoftmaxLoss)  # and their subclasses


class ConfidencePenaltyLoss(Loss):
    """Add to a loss that classifies the negative entropy of its probabilities.

    With p the softmax of another loss's logits, and H their entropy in nats::

        H = -sum_c p_c log p_c
        L = the other loss - weight mean of H

    Confident probabilities have a low entropy, so that they cost more. With ``threshold``, only
    images below that entropy count: the other loss + weight mean of max(0, threshold - H).

    If the other loss has a margin, the probabilities are those without it.

    Args:
        loss: any loss of the zoo with a method ``get_logits``, or ``pml.NormalizedSoftmaxLoss``,
            ``pml.LargeMarginSoftmaxLoss`` and those that derive from it.
        weight: beta of the paper; 0.1 is one of its values.
        threshold: Gamma of the paper; at most log C has an effect.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, which may be below 0. A
        gallery and mined pairs have no meaning for it.

    Reference:
        Pereyra, Tucker, Chorowski, Kaiser, Hinton. Regularizing Neural Networks by Penalizing
        Confident Output Distributions. arXiv:1701.06548, 2017, section 3.
    """

    paper: ClassVar[str] = (
        "Pereyra et al. 2017, Regularizing Neural Networks by Penalizing Confident Output "
        "Distributions"
    )
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False
    normalises = False
    check_arguments: ClassVar[Mapping[str, Any]] = {"loss": "normface"}

    def __init__(
        self, loss: nn.Module, weight: float = 0.1, threshold: float | None = None
    ) -> None:
        super().__init__()
        require_not_negative(weight=weight)
        if threshold is not None:
            require_positive(threshold=threshold)
        of_pml = type(loss).__module__.startswith("pytorch_metric_learning.")
        if not (isinstance(loss, _OF_PML) if of_pml else hasattr(loss, "get_logits")):
            raise UserError(
                f"confidence_penalty: {type(loss).__name__} has no logits of classes; choose a "
                "loss that has a method get_logits, such as cce or normface"
            )
        self.weight = weight
        self.threshold = threshold
        self.loss: Any = loss

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the other loss and the mean penalty."""
        value: Tensor = self.loss(embeddings, labels)
        logs = F.log_softmax(self.loss.get_logits(embeddings), dim=1)
        penalty = (logs.exp() * logs).sum(1)
        if self.threshold is not None:
            penalty = F.relu(self.threshold + penalty)
        return value + self.weight * penalty.mean()
