"""Metric scaling, of task-dependent adaptive metrics (TADAM)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._class_means import prototypical_nll
from ._shared import Loss


class TADAMLoss(Loss):
    """Classify every image by its distance to class means, times a learned scale.

    With c_k the mean of the support images of class k, x the unnormalised embeddings, D the squared
    Euclidean distance, and alpha a learned parameter::

        L(x) = -log( exp(-alpha D(x, c_y)) / sum_k exp(-alpha D(x, c_k)) )

    and L is the mean over the queries; support and queries are those of
    :class:`zoo.losses.prototypical.PrototypicalLoss`, which it equals at alpha = 1.

    For small alpha the gradient pulls to the own prototype and pushes away from the mean of all;
    for large alpha it pushes away only from the nearest wrong one (Lemma 1). Nothing keeps alpha
    above 0, as in the paper.

    Differs from the authors' code in:
        * D and alpha. Their code has the distance, not its square, and alpha stays at 7.5, a value
          from a search; the paper speaks of learning it. The defaults here extend the prototypical
          loss. Theirs are ``squared: false, alpha: 7.5, learn_alpha: false``.
        * it is only the metric scaling (section 2.1). Task conditioning and auxiliary co-training
          change the network, not the loss.

    Args:
        alpha: the scale, or where it starts.
        squared: whether D is the squared distance, or the distance itself.
        learn_alpha: whether alpha is learned. False keeps it.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d) as the support; returns a scalar.
        A batch without queries gives 0, one class gives 0. Mined pairs have no meaning for it.

    Reference:
        Oreshkin, Rodriguez, Lacoste. TADAM: Task Dependent Adaptive Metric for Improved Few-shot
        Learning. NeurIPS 2018, arXiv:1805.10123, section 2.1.
    """

    paper: ClassVar[str] = (
        "Oreshkin et al. 2018, TADAM: Task Dependent Adaptive Metric for Improved Few-shot Learning"
    )
    related = "prototypical"
    cost = "N²"
    sampler = "m_per_class"
    kind = "list"
    mined = False
    normalises = False

    def __init__(self, alpha: float = 1.0, squared: bool = True, learn_alpha: bool = True) -> None:
        super().__init__()
        if not 0 < alpha < math.inf:
            raise UserError(f"alpha must be positive, not {alpha}")
        self.alpha = nn.Parameter(torch.tensor(float(alpha)), requires_grad=learn_alpha)
        self.squared = squared

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the queries."""
        alpha = self.alpha.to(embeddings.dtype)
        return prototypical_nll(embeddings, labels, ref_emb, ref_labels, alpha, self.squared)
