"""TADAM with task conditioning."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._networks import apply
from ._require import require_not_negative
from .tadam import TADAMLoss


class TADAMConditionedLoss(TADAMLoss):
    """Compare images as ``tadam`` does, after each number was scaled as the task asks for.

    The task of a batch is the mean of its class means, and a network h of three residual layers
    says from it how much each number of an embedding counts (section 2.2)::

        x' = (1 + g h(c)) * x,     c = mean_k c_k

    with one learned factor g, at first 0, and penalised by penalty g²: all numbers should count the
    same unless the task gives a good reason. The value is that of
    :class:`zoo.losses.tadam.TADAMLoss` for x', plus the penalty; at g = 0 it is equal.

    The network is dropped after training: images are searched by x, as there is no task.

    Differs from the paper in:
        * the paper conditions the layers of the network below, in a second pass over the images. A
          loss sees only the embeddings; the paper finds that the last layers gain the most.
        * the paper also predicts a shift of each number. Here it would be the same for all images
          of a task, and cancel in every distance.
        * c is of all images of the batch, as each is in the support of the others.
        * auxiliary co-training is a second loss, not a part of this one.

    Args:
        embedding_size: d.
        alpha: the scale of the distances, or where it starts.
        squared: whether distances are squared.
        learn_alpha: whether alpha is learned. False keeps it.
        penalty: of g², 0.01 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d) as the support, which then makes
        the task; returns a scalar. A batch without queries gives the penalty.

    Reference:
        Oreshkin, Rodriguez, Lacoste. TADAM: Task Dependent Adaptive Metric for Improved Few-shot
        Learning. NeurIPS 2018, arXiv:1805.10123, section 2.2; the layers are from the appendix.
    """

    paper: ClassVar[str] = (
        "Oreshkin et al. 2018, TADAM: Task Dependent Adaptive Metric for Improved Few-shot Learning"
    )
    cost = "N²"
    sampler = "m_per_class"
    related = "tadam"
    kind = "list"
    mined = False
    normalises = False

    def __init__(
        self,
        embedding_size: int,
        alpha: float = 1.0,
        squared: bool = True,
        learn_alpha: bool = True,
        penalty: float = 0.01,
    ) -> None:
        super().__init__(alpha, squared, learn_alpha)
        require_not_negative(penalty=penalty)
        self.penalty = penalty
        self.task = _Residual(embedding_size)
        self.factor = nn.Parameter(torch.zeros(()))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the queries, and the penalty."""
        factor = self.factor.to(embeddings.dtype)
        scale = 1 + factor * apply(self.task, _mean_of_classes(ref_emb, ref_labels)[None])
        queries = scale * embeddings
        support = queries if ref_emb is embeddings else scale * ref_emb
        value = super().value(queries, labels, indices_tuple, support, ref_labels)
        return value + self.penalty * factor.square()


class _Residual(nn.Module):
    """Three layers of one size, of which the second and the third add to their input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (N, size)."""
        first, second, third = self.layers
        x = F.silu(first(x))
        x = F.silu(second(x) + x)
        result: Tensor = third(x) + x
        return result


def _mean_of_classes(x: Tensor, labels: Tensor) -> Tensor:
    """Return the mean (d,) of the class means: each image weighs one over its class' size."""
    weights = 1 / (labels[:, None] == labels).sum(1).to(x.dtype)
    return weights @ x / weights.sum()
