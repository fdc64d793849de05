"""Prototypical networks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ._class_means import prototypical_nll
from ._shared import Loss


class PrototypicalLoss(Loss):
    """Classify every image by its squared distance to the mean of each class.

    With x the embeddings as they are, not normalised, S_k the support images of class k and c_k
    their mean, a query x of class y has (section 2.2)::

        L(x) = -log( exp(-||x - c_y||²) / sum_k exp(-||x - c_k||²) )

    and L is the mean over the queries.

    Differs from the paper in what is support and what is query. The paper draws both at random
    from the images of a class. Here every image of the batch is a query once, and *all other*
    images are the support: its own prototype is the mean of the others of its class, as a query is
    never part of its support. That is the mean over all episodes with one query, and it does not
    depend on the order of the batch. Halves, as the paper has them, are a call with the one as the
    gallery of the other.

    An image that is alone in its class is no query, as it has no support; it is the prototype of
    its class for the others.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. With a gallery ``ref_emb`` (M, d) that is
        the support and the batch the queries; a query of a class that has no support is left out.
        A batch without queries gives 0, one class gives 0. Mined pairs have no meaning for it.

    Reference:
        Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. NIPS 2017,
        arXiv:1703.05175, section 2.2.
    """

    paper: ClassVar[str] = "Snell et al. 2017, Prototypical Networks for Few-shot Learning"
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
