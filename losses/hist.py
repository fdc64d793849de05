"""HIST: hypergraph-induced semantic tuplets."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._layers import linear, standardise
from ._require import require_not_negative, require_positive
from ._shared import Loss, unit

_SLOPE = 0.1  # of the leaky ReLU
_MOST = 6.0  # of the logarithm of a variance


class HISTLoss(Loss):
    """Learn a distribution for each class, and classify images by a network on their relations.

    With x the embeddings, f = x / |x|, and for each class c a learned mean u_c on the unit sphere
    and learned variances v_c, whose logarithms are limited to 0 .. 6::

        D_ic = sum over the dimensions of (f_i - u_c)² / v_c
        L_D  = mean of -log( exp(-tau D_iy) / sum_c exp(-tau D_ic) )

    For each class of the batch, a hyperedge joins all images, with weight 1 if they are of the
    class, and else exp(-alpha D_ic): this is the semantic tuplet of the class. With H (N, edges)
    these weights, and its sums of rows and columns on the diagonals of R and E, two layers pass
    messages along the hypergraph, and classify::

        G   = R^-1/2 H E^-1 H^T R^-1/2
        h   = leaky ReLU of (batch norm of G (x A + a)),   z = G (h B + b)
        L   = L_D + weight (mean of -log( exp(z_y) / sum_c exp(z_c) ))

    A (d, hidden) and B (hidden, C) are learned matrices, a and b learned biases.

    Differs from the paper in:
        * the normalisation of h uses the statistics of the batch also after ``eval()``.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        tau: 32 in the authors' code.
        alpha: 0.9 in the authors' code; 0 gives all images the same weight.
        weight: lambda_s of the paper; 1 in the authors' code.
        hidden: width of h; 512 in the authors' code, which is their d. By default d.
        distribution_lr: the learning rate of the distributions, as a multiple of the network's; 100
            in the authors' code.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Lim, Yun, Park, Choi. Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning.
        CVPR 2022, section 3.
    """

    paper: ClassVar[str] = (
        "Lim et al. 2022, Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning"
    )
    kind = "proxy"
    cost = "N² + N C"
    sampler = "shuffle"
    gallery = False
    mined = False
    normalises = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        tau: float = 32.0,
        alpha: float = 0.9,
        weight: float = 1.0,
        hidden: int | None = None,
        distribution_lr: float = 100.0,
    ) -> None:
        super().__init__()
        require_positive(tau=tau, distribution_lr=distribution_lr)
        require_not_negative(alpha=alpha, weight=weight)
        if hidden is not None and hidden < 1:
            raise UserError(f"hidden must be at least 1, not {hidden}")
        self.num_classes = num_classes
        self.tau = tau
        self.alpha = alpha
        self.weight = weight
        self.hidden = hidden
        self.distribution_lr = distribution_lr
        width = embedding_size if hidden is None else hidden
        start = (2 / num_classes) ** 0.5  # Kaiming's, as in the authors' code
        self.means = nn.Parameter(start * torch.randn(num_classes, embedding_size))
        self.log_variances = nn.Parameter(start * torch.randn(num_classes, embedding_size))
        self.first = nn.Linear(embedding_size, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.second = nn.Linear(width, num_classes)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the distributions, which have a learning rate of their own."""
        distributions = [self.means, self.log_variances]
        return [{"params": distributions, "lr_multiplier": self.distribution_lr}]

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropies of the distributions and of the network."""
        check_classes(labels, self.num_classes)
        targets = labels.long()
        distances = self._distances(unit(embeddings))
        own = F.one_hot(targets, self.num_classes) > 0
        weights = torch.where(own, 1, (-self.alpha * distances).exp()) * own.any(0)
        logits = self._classify(embeddings, _propagation(weights))
        entropy = F.cross_entropy(-self.tau * distances, targets)
        return entropy + self.weight * F.cross_entropy(logits, targets)

    def _distances(self, f: Tensor) -> Tensor:
        """Return D (N, C)."""
        means = unit(self.means.to(f.dtype))
        precision = (-self.log_variances.to(f.dtype).clamp(0, _MOST)).exp()
        weighted = means * precision
        of_means = (means * weighted).sum(1)
        return f.square() @ precision.T - 2 * f @ weighted.T + of_means

    def _classify(self, x: Tensor, propagate: Tensor) -> Tensor:
        """Return the logits (N, C) of the network on the hypergraph."""
        h = standardise(propagate @ linear(self.first, x))
        h = F.leaky_relu(h * self.gain.to(x.dtype) + self.shift.to(x.dtype), _SLOPE)
        return propagate @ linear(self.second, h)


def _propagation(weights: Tensor) -> Tensor:
    """Return G (N, N) of the weights H (N, C); an edge without images has no effect."""
    rows = weights.sum(1, keepdim=True).rsqrt() * weights
    return (rows / weights.sum(0).clamp_min(torch.finfo(rows.dtype).tiny)) @ rows.T
