"""What the losses of the zoo have in common: PML's calling convention, in full precision."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from zoo._precision import full_float32, upcast

from ._inputs import check


class Loss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss of the zoo: the subclass writes only :meth:`value`.

    It is called as the losses of pytorch-metric-learning are, and takes what its miners return.
    Whatever comes in, half precision or autocast, the work is done in float32, or in float64 if
    that is what comes in.
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar with a graph.

        Args:
            embeddings: (N, d) raw network outputs.
            labels: (N,) int64, any values.
            indices_tuple: what a PML miner returned: the pairs or triplets to look at.
            ref_emb: (M, d) gallery; by default the batch itself, self-pairs left out.
            ref_labels: (M,) labels of the gallery.

        Raises:
            UserError: what does not go together: shapes, types, a gallery without labels.
        """
        if ref_emb is embeddings and ref_labels is labels:  # as some of PML's code calls it
            ref_emb = ref_labels = None
        check(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        with full_float32(embeddings.device):
            x = upcast(embeddings)
            gallery = None if ref_emb is None else ref_emb.to(x.dtype)
            if not len(x) or (gallery is not None and not len(gallery)):
                return x[:0].sum()
            loss: Tensor = super().forward(x, labels, indices_tuple, gallery, ref_labels)
        return loss

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, Any]:
        """Wrap :meth:`value` the way PML's reducers expect it."""
        value = self.value(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}

    @abstractmethod
    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the scalar loss; ``ref_emb is embeddings`` when there is no gallery."""


class Unit(NamedTuple):
    """Rows on the unit sphere, f (N, d), and the norms (N, 1) that they had."""

    f: Tensor
    norm: Tensor

    def pull_back(self, grad: Tensor, share: Tensor) -> Tensor:
        """Return ``share`` times the gradient wrt the raw rows, ``(G - (G . f) f) / ||x||``."""
        radial = torch.linalg.vecdot(grad, self.f).unsqueeze(1)
        return torch.addcmul(grad, radial, self.f, value=-1).mul_(share / self.norm)


def unit_sphere(x: Tensor, eps: float = 1e-12) -> Unit:
    """Return the rows of x on the unit sphere; a zero row stays zero and gets no gradient.

    Each row is divided by its largest entry first, so that a norm beyond 1e19 does not overflow
    when it is squared in float32.
    """
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    f = x / largest.masked_fill_(largest < eps, torch.inf)
    norm = torch.linalg.vector_norm(f, dim=1, keepdim=True).clamp_min_(eps)
    return Unit(f.div_(norm), norm * largest)
