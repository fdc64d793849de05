"""Losses that pytorch-metric-learning has right: under a plain name, in full precision."""

from __future__ import annotations

from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from ._shared import Loss


class PMLLoss(Loss):
    """A loss of pytorch-metric-learning with the arguments and defaults of its paper.

    It adds what :class:`Loss` promises: float32 under autocast and of half precision, inputs that
    are checked, and 0 with a graph where there is nothing to learn from.

    Args:
        pml: the loss as PML has it, built.
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
        """Return what PML's loss gives."""
        gallery = () if ref_emb is embeddings else (ref_emb, ref_labels)
        value: Tensor = self.pml(embeddings, labels, indices_tuple, *gallery)
        return value
