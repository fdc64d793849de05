"""Matching networks."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._neighbours import neighbour_nll
from ._shared import Loss, masks, unit


class MatchingNetLoss(Loss):
    """Classify every image by a vote of the support images, weighted by a softmax of cosines.

    With c(x, i) the cosine of a query x and support image i (section 2.1)::

        a(x, i) = exp(s c(x, i)) / sum_j exp(s c(x, j))
        L       = mean over the queries of -log sum_{i : y_i = y} a(x, i)

    Every image is a query, and all others of the batch are its support. That is NCA on cosines, and
    equals pytorch-metric-learning's ``NCALoss(softmax_scale=s, distance=CosineSimilarity())``; the
    logarithm is taken of sums in logarithms, so that it does not vanish where the share of the
    positives rounds to 0.

    Differs from the paper in:
        * the paper draws a support set and a batch for each task. A call with a gallery does so.
        * full context embeddings, where the network sees the whole support set, are in
          ``matching_net_fce``.

    Args:
        scale: s; 1 in the paper, which has few classes in a task. With 1, in a batch of 30 classes
            of 2, the share of the own class is never above 0.12; 10 to 30 separate better.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A gallery ``ref_emb`` (M, d) is the
        support; with mined pairs, the support is the mined positives and negatives. A query without
        support of its class is left out; a batch of such queries gives 0, and so does one class. A
        pair that was mined more than once counts once.

    Reference:
        Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra. Matching Networks for One Shot
        Learning. NIPS 2016, arXiv:1606.04080, section 2.1.
    """

    paper: ClassVar[str] = "Vinyals et al. 2016, Matching Networks for One Shot Learning"
    related = "prototypical, nca"
    cost = "N²"
    sampler = "m_per_class"
    kind = "list"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not 0 < scale < math.inf:
            raise UserError(f"scale must be positive, not {scale}")
        self.scale = scale

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the queries."""
        positive, negative = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        queries = unit(embeddings)
        support = queries if ref_emb is embeddings else unit(ref_emb)
        return neighbour_nll(self.scale * (queries @ support.T), positive, negative)
