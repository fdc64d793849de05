"""Attention-based ensemble (ABE): learners that are kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._levels import OfLevels, losses_of
from ._require import require_not_negative, require_positive
from ._shared import Loss, unit
from .contrastive import ContrastiveLoss


class ABELoss(OfLevels, Loss):
    """Train each learner by a loss, and push apart what different learners see in one image.

    With B_m the L2-normalised embedding of learner m, of M::

        L = sum_m L_metric(B_m) + divergence L_div
        L_div = sum_{p < q} mean over the images x of max(0, margin - |B_p(x) - B_q(x)|²)

    The learners of the paper differ in what they attend to, and share all else: the backbone
    ``abe``, with its ``size`` (:class:`zoo.models.abe.AttentionEnsemble`). Parts of one embedding
    (``model.slices``) already differ in their weights, and gain little from ``L_div``.

    Differs from the paper in:
        * ``L_div`` is a mean over the images, and each pair of learners counts once; the paper has
          a sum over both.
        * ``L_metric`` is by default our contrastive loss, in which positives and negatives each
          have a mean of their own; the paper has one sum over all pairs, and the hinge on d².

    Args:
        level_sizes: the sizes of the learners. The shorter of two is filled up with zeros.
        loss: the loss of each learner; by default ``contrastive`` with margin 1. Each learner has a
            copy. One with weights can only be given in Python, built for the size of a learner.
        divergence: lambda, 1 in the paper.
        margin: of the divergence, in squared distance; 1 in the paper.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. A batch of one image has
        ``L_div`` and what the loss gives.

    Reference:
        Kim, Goyal, Chawla, Lee, Kwon. Attention-based Ensemble for Deep Metric Learning. ECCV 2018,
        arXiv:1804.00382, section 3.4.
    """

    paper: ClassVar[str] = "Kim et al. 2018, Attention-based Ensemble for Deep Metric Learning"
    related = "contrastive"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(
        self,
        level_sizes: Sequence[int],
        loss: nn.Module | None = None,
        divergence: float = 1.0,
        margin: float = 1.0,
    ) -> None:
        super().__init__(level_sizes)
        require_not_negative(divergence=divergence)
        require_positive(margin=margin)
        self.losses = losses_of(loss or ContrastiveLoss(), self.level_sizes)
        self.divergence = divergence
        self.margin = margin

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the losses of the learners and their divergence."""
        learners = self.levels(embeddings)
        found = [loss(x, labels) for loss, x in zip(self.losses, learners, strict=True)]
        total = torch.stack(found).sum()
        if not self.divergence:
            return total
        f = [unit(x) for x in learners]
        apart = [F.relu(self.margin - _squared(p, q)).mean() for p, q in combinations(f, 2)]
        return total + self.divergence * sum(apart)


def _squared(p: Tensor, q: Tensor) -> Tensor:
    """Return the squared distances (N,) of rows, the shorter ones filled up with zeros."""
    width = max(p.shape[1], q.shape[1])
    p, q = (F.pad(x, (0, width - x.shape[1])) for x in (p, q))
    return (p - q).square().sum(1)
