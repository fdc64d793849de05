"""Correct losses of pytorch-metric-learning under a plain name, in full precision."""

from __future__ import annotations

from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from ._shared import Loss


class PMLLoss(Loss):
    """A loss of pytorch-metric-learning with the arguments and defaults of its paper.

    It adds what :class:`Loss` promises: float32 under autocast and for half precision, checked
    inputs, and 0 with a graph if there is nothing to learn from.

    Args:
        pml: the built loss of PML.
    """

    def __init__(self, pml: BaseMetricLossFunction) -> None:
        super().__init__()
        self.pml = pml

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the value of PML's loss."""
        gallery = () if ref_emb is embeddings else (ref_emb, ref_labels)
        value: Tensor = self.pml(embeddings, labels, indices_tuple, *gallery)
        return value
