"""Multi-class N-pair loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import NPairsLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor

from zoo.errors import UserError

from ._adapter import PMLLoss


class NPairMCLoss(PMLLoss):
    """Distinguish the positive of an anchor from the positives of all other classes.

    With one pair (x_i, y_i) of each of N classes, and dot products of unnormalised embeddings::

        L = 1/N sum_i log(1 + sum_{j != i} exp(x_i . y_j - x_i . y_i))
            + l2_weight / 4 (mean_i |x_i|² + mean_i |y_i|²)

    It is pytorch-metric-learning's NPairsLoss on dot products: by default PML normalises, and a
    softmax of logits between -1 and 1 hardly learns.

    Differs from the paper in:
        * of a class with more than two images in the batch, the first two are its pair. Use
          batches of two: ``sampler: {name: hard_class}``, or ``m_per_class`` with per_class 2.
        * the regulariser takes all images of the batch, which is the same for batches of two.

    Args:
        l2_weight: of the squared lengths; 0.002 in TensorFlow's code.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A gallery has no meaning for it. Without a
        class that has two images, or with only one class, only the regulariser remains.

    Reference:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016,
        section 3.2.
    """

    paper: ClassVar[str] = (
        "Sohn 2016, Improved Deep Metric Learning with Multi-class N-pair Loss Objective"
    )
    related = "ntxent, triplet_semihard"
    kind = "list"
    cost = "N²"
    sampler = "hard_class"
    gallery = False
    normalises = False
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_permutation": "of the two images of a class, the first in the batch is the anchor"
    }

    def __init__(self, l2_weight: float = 0.002) -> None:
        if not l2_weight >= 0:
            raise UserError(f"l2_weight must be at least 0, not {l2_weight}")
        super().__init__(
            NPairsLoss(
                distance=DotProductSimilarity(normalize_embeddings=False),
                embedding_regularizer=LpRegularizer(p=2, power=2),
                embedding_reg_weight=l2_weight / 2,
            )
        )
        self.l2_weight = l2_weight

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the value of PML's loss, which takes one pair of each class, mined pairs too."""
        if labels is None:
            raise UserError("labels are missing; NPairMCLoss needs them even with mined pairs")
        return super().value(embeddings, labels, indices_tuple, ref_emb, ref_labels)
