"""Prototypical networks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ._class_means import prototypical_nll
from ._shared import Loss


class PrototypicalLoss(Loss):
    """Classify every image by its squared distance to the mean of each class.

    With x the unnormalised embeddings, S_k the support images of class k and c_k their mean, a
    query x of class y has (section 2.2)::

        L(x) = -log( exp(-||x - c_y||²) / sum_k exp(-||x - c_k||²) )

    and L is the mean over the queries.

    Differs from the paper in the choice of support and queries. The paper draws both at random from
    the images of a class. Here every image of the batch is a query once, and *all other* images are
    its support: its own prototype is the mean of the others of its class. That is the mean over all
    episodes with one query, and does not depend on the order of the batch. For halves as in the
    paper, call it with one half as the gallery of the other.

    An image that is alone in its class is not a query, as it has no support; it is the prototype of
    its class for the others.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A gallery ``ref_emb`` (M, d) is the
        support of the queries in the batch; queries of a class without support are left out.
        A batch without queries gives 0, one class gives 0. Mined pairs have no meaning for it.

    Reference:
        Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. NIPS 2017,
        arXiv:1703.05175, section 2.2.
    """

    paper: ClassVar[str] = "Snell et al. 2017, Prototypical Networks for Few-shot Learning"
    related = "tadam, matching_net"
    cost = "N²"
    sampler = "m_per_class"
    kind = "list"
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
        """Return the mean over the queries."""
        return prototypical_nll(embeddings, labels, ref_emb, ref_labels, 1.0)
