"""Deep spectral clustering learning."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.errors import UserError

from ._shared import Loss


class SpectralClustLoss(Loss):
    """Make the span of the embeddings contain the indicator of every class.

    With F (n, d) the unnormalised embeddings of the batch, P = F F⁺ the projection on its columns,
    and C the projection on the indicators of the k classes, C_ij = [y_i = y_j] / n_(y_i)::

        L     = k - tr(C P)             from max(0, k - d) to k
        dL/dF = -2 (I - P) C (F⁺)^T

    The gradient is used in this closed form; neither the pseudo-inverse nor a decomposition is
    differentiated. L does not change if F is multiplied by any invertible matrix.

    **If n <= d, P is the identity and the gradient is exactly zero**: the batch must have more
    images than the embedding has numbers, and d should be about k. Batches that are too large for
    the memory can be embedded in chunks: ``train.chunk_size``.

    Differs from the authors' code in:
        * that code uses half of the gradient, and a surrogate of value 0; here the value is L.
        * singular values below max(n, d) eps of float32 relative to the largest count as 0; the
          code's threshold of 1e-15 lets rounding errors pass, a thousand times as large as the
          rest.

    The published results also project the test embeddings on their singular vectors, which needs
    the whole test set at once; that is not done here.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. Decomposed in float64. A gallery and mined
        pairs have no meaning for it.

    Reference:
        Law, Urtasun, Zemel. Deep Spectral Clustering Learning. ICML 2017.
    """

    paper: ClassVar[str] = "Law et al. 2017, Deep Spectral Clustering Learning"
    related = "struct_clust"
    kind = "clustering"
    cost = "N² d"
    sampler = "m_per_class"
    gallery = False
    mined = False
    normalises = False

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return k - tr(C P)."""
        value: Tensor = _Spectral.apply(embeddings, labels)
        return value

    def check_batch(self, batch_size: int, embedding_size: int) -> None:
        """Refuse batches from which nothing can be learned."""
        if batch_size <= embedding_size:
            raise UserError(
                f"spectral_clust has an exactly zero gradient for batches of {batch_size} images "
                f"and embeddings of {embedding_size} numbers: the batch must be larger. Lower "
                "model.embedding_size to about the classes of a batch, or make batches larger "
                "(train.chunk_size embeds large ones in pieces)"
            )


class _Spectral(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, labels: Tensor) -> Tensor:
        f = embeddings.double()
        # L does not depend on the length of f, which is scaled so that squares cannot overflow.
        # Below 1e-30 f counts as 0: its gradient, of order 1 / length, would overflow in float32.
        length = f.abs().amax()
        length = length.masked_fill(length <= 1e-30, torch.inf)
        f = f / length
        same = (labels[:, None] == labels).double()
        c = same / same.sum(1)
        u, s, vh = torch.linalg.svd(f, full_matrices=False)
        threshold = max(f.shape) * torch.finfo(torch.float32).eps * s[:1]
        kept = (s > threshold).double()
        u = u * kept
        inverse = kept / torch.where(kept > 0, s, 1)
        projected = c @ u
        left = c @ ((u * inverse) @ vh)  # C (F+)^T
        grad = -2 * (left - u @ (u.T @ left))
        ctx.save_for_backward((grad / length).to(embeddings.dtype))
        value: Tensor = c.diagonal().sum() - (u * projected).sum()
        return value.to(embeddings.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (to_embeddings,) = ctx.saved_tensors
        return grad * to_embeddings, None
