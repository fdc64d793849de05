"""Potential field."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from zoo.errors import UserError

from ._classes import check_classes
from ._require import require_positive
from ._shared import Loss, unit

_BLOCK_ELEMENTS = 1 << 22  # points x points in a block: 16 MB for each temporary
_NEAREST = 1e-3  # points that are nearer count as if they were at this distance, without a force


class PotentialFieldLoss(Loss):
    """Let images and proxies attract their class and repel others, less from farther away.

    With M learned proxies for each class, r the Euclidean distances between all points, which are
    the L2-normalised embeddings of the batch and all proxies, the energy of two points is (Eq. 1
    and 2)::

        same class         -1/max(r, delta)^alpha      no force if nearer than delta
        other classes      +1/min(r, delta)^alpha      no force if farther than delta

    and the loss their sum over all ordered pairs of two points (Eq. 6), divided by the number of
    images. Unlike in most losses, two points of a class that are far apart hardly attract each
    other: they may be of two sub-populations of the class, or one of them may be labelled wrongly.

    Differs from the paper in:
        * units. Energies are in units of 1/delta^alpha, less the constant 1 of each pair of two
          classes, and divided by the images of the batch; the paper's is a plain sum. That is a
          factor and a constant.
        * r below 0.001 counts as 0.001, without a force: at 0 the energy is infinite.
        * proxies are normalised too, and start on random points of the sphere; the paper does not
          state it.

    The energies of the proxies among themselves are part of the loss, so that time grows with
    (N + C M)²; the memory is that of one block of rows, and of the points.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        proxies_per_class: M; 15 on CUB and CARS196, 2 on Stanford Online Products in the paper.
        alpha: how fast the force decays; the paper searches 0 to 6.
        delta: the distance up to which points of a class should come, and other classes should go;
            the paper searches 0.1 to 0.3.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar. A gallery and mined pairs
        have no meaning for it.

    Reference:
        Bhatnagar, Ahuja. Potential Field Based Deep Metric Learning. CVPR 2025, arXiv:2405.18560.
        No code of the authors is public. Formulas and ranges are those in which two independent
        reproductions agree; the paper does not state alpha and delta of its results.
    """

    paper: ClassVar[str] = "Bhatnagar & Ahuja 2025, Potential Field Based Deep Metric Learning"
    related = "proxy_anchor, soft_triple"
    kind = "proxy"
    cost = "(N + C)²"
    sampler = "m_per_class"
    gallery = False
    mined = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 2,
        alpha: float = 3.0,
        delta: float = 0.2,
    ) -> None:
        super().__init__()
        if proxies_per_class < 1:
            raise UserError(f"proxies_per_class must be at least 1, not {proxies_per_class}")
        if not 0 < alpha <= 10:
            raise UserError(f"alpha must be positive and at most 10, not {alpha}")
        require_positive(delta=delta)
        self.num_classes = num_classes
        self.alpha = alpha
        self.delta = delta
        self.proxies = nn.Parameter(torch.randn(num_classes, proxies_per_class, embedding_size))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the energy of all pairs of points."""
        check_classes(labels, self.num_classes)
        points = torch.cat([embeddings, self.proxies.to(embeddings.dtype).flatten(0, 1)])
        own = torch.arange(self.num_classes, device=labels.device)
        own = own.repeat_interleave(self.proxies.shape[1])
        settings = (torch.cat([labels, own]), len(embeddings), self.alpha, self.delta)
        energy: Tensor = _Energy.apply(unit(points), *settings)
        return energy / len(embeddings)


class _Energy(torch.autograd.Function):
    """The energy of all ordered pairs of points, with its gradient, in blocks of rows."""

    @staticmethod
    def forward(
        ctx: Any, points: Tensor, classes: Tensor, images: int, alpha: float, delta: float
    ) -> Tensor:
        energy, gradients = points.new_zeros(()), []
        # About the mean of the images, distances do not cancel where these are near each other. A
        # row of zeros is at 2 from all others, squared, as by 2 - 2 x . y.
        centred = points - points[:images].mean(0)
        lengths = centred.square().sum(1) + (points.square().sum(1) < 0.5)
        rows = max(1, _BLOCK_ELEMENTS // len(points))
        for start in range(0, len(points), rows):
            stop = min(start + rows, len(points))
            square = lengths[start:stop, None] + lengths - 2 * centred[start:stop] @ centred.T
            square = square / delta**2  # (r / delta)²
            same = classes[start:stop, None] == classes
            near = square < 1
            force = torch.where(same, near.logical_not(), near & (square > (_NEAREST / delta) ** 2))
            force.diagonal(start).fill_(False)
            square = square.clamp_min((_NEAREST / delta) ** 2)
            potential = square.pow(-alpha / 2)
            signed = torch.where(same, -potential.clamp_max(1), (potential - 1).clamp_min(0))
            signed.diagonal(start).zero_()
            energy = energy + signed.sum()
            # Each pair counts in both orders; towards larger cosines the energy of a class falls.
            slope = torch.where(force, potential / square, 0) * (2 * alpha / delta**2)
            gradients.append(torch.where(same, -slope, slope) @ points)
        ctx.save_for_backward(torch.cat(gradients))
        return energy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * gradient, *[None] * 4
