"""Dimensionality reduction for representing the knowledge of probabilistic models (DRPR)."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._class_means import class_means
from ._neighbours import log_sum_exp, mean_where, softplus
from ._shared import Loss


class DRPRLoss(Loss):
    """Make soft clustering by distances to class means agree with the labels.

    With Y (N, k) the target probabilities, f the unnormalised embeddings, and for each class the
    prior pi_k = mean_i Y_ik and the mean mu_k = sum_i Y_ik f_i / sum_i Y_ik::

        p_ik = pi_k exp(-||f_i - mu_k||² / temperature) / sum_c pi_c exp(-||f_i - mu_c||² / ...)
        L    = mean_i KL(Y_i || p_i)

    Labels are the case of one-hot Y: the entropy of Y is 0 and KL is the cross entropy -log p_iy;
    mu_k is the mean of class k and pi_k its share of the batch. It differs from
    :class:`zoo.losses.prototypical.PrototypicalLoss` in two things: an image is part of the mean of
    its own class, and large classes have a larger prior, which cancels if all have the same size.

    An image that is alone in its class is the mean of the class. It pushes and is pushed, as its
    own probability is less than 1.

    Differs from the paper in being a mean over the images instead of a sum, and in the target: the
    paper's purpose is to learn from soft Y, which labels cannot express.

    Args:
        temperature: divisor of the distances; 1 in the paper's formula, 50 in the authors' code
            for zero-shot learning on Flowers.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A gallery ``ref_emb`` (M, d) gives the
        means and the priors; images of classes that it lacks are left out. One class gives 0.
        Mined pairs have no meaning for it.

    Reference:
        Law, Snell, Farahmand, Urtasun, Zemel. Dimensionality Reduction for Representing the
        Knowledge of Probabilistic Models. ICLR 2019; checked with the authors' code.
    """

    paper: ClassVar[str] = (
        "Law et al. 2019, Dimensionality Reduction for Representing the Knowledge of "
        "Probabilistic Models"
    )
    related = "spectral_clust, prototypical"
    cost = "N²"
    sampler = "m_per_class"
    kind = "clustering"
    mined = False
    normalises = False

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise UserError(f"temperature must be positive, not {temperature}")
        self.temperature = temperature

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean of -log p_iy."""
        means = class_means(embeddings, labels, ref_emb, ref_labels)
        log_prior = means.size.to(embeddings.dtype).log()  # up to log N, which cancels
        rivals = log_sum_exp(log_prior - means.distance / self.temperature, means.other)
        own_prior = means.own_size.clamp_min(1).to(embeddings.dtype).log()
        gap = rivals - own_prior + means.own / self.temperature
        return mean_where(softplus(gap), means.own_size > 0)
