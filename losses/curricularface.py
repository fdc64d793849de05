"""CurricularFace."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._cosine_classifier import CosineWeights, add_angle
from ._require import require_positive


class CurricularFaceLoss(CosineWeights):
    """Use ArcFace with weights on hard classes that grow as the training proceeds.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes, a_c the angle
    between f and w_c, s the scale and m the margin::

        L   = mean of -log( exp(s T) / (exp(s T) + sum_{c != y} exp(s N_c)) )
        T   = cos(a_y + m)
        N_c = cos a_c                 where cos a_c <= T, which is easy
            = cos a_c (t + cos a_c)   where cos a_c > T, which is hard

    t follows the mean cosine r to the own weight: t becomes ``rate`` r + (1 - ``rate``) t after
    each batch, from 0. It is near 0 at first, so that hard classes count less, and grows. After
    ``eval()`` it does not change. T beyond a_y = pi - m is replaced as in ArcFace.

    Differs from the paper in:
        * the order. t is that of the batches before, so that the gradient is the derivative of the
          value. The authors' code first includes the batch itself.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 64 in the paper.
        margin: m in degrees; 28.6, which are 0.5 rad, in the paper.
        rate: the share of a batch in the moving average; 0.01 in the authors' code, which keeps
            0.99 of the old t.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Huang, Wang, Tai, Liu, Shen, Li, Li, Huang. CurricularFace: Adaptive Curriculum Learning
        Loss for Deep Face Recognition. CVPR 2020, arXiv:2004.00288, section 3.
    """

    paper: ClassVar[str] = (
        "Huang et al. 2020, CurricularFace: Adaptive Curriculum Learning Loss for Deep Face "
        "Recognition"
    )
    related = "arcface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin: float = 28.6,
        rate: float = 0.01,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        require_positive(scale=scale)
        if not 0 <= margin <= 90:
            raise UserError(f"margin must be from 0 to 90 degrees, not {margin}")
        if not 0 <= rate <= 1:
            raise UserError(f"rate must be from 0 to 1, not {rate}")
        self.scale = scale
        self.margin = margin
        self.rate = rate
        self.t: Tensor
        self.register_buffer("t", torch.zeros(()))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy, and move t."""
        cosines, targets = self.cosines(embeddings, labels)
        own = targets[:, None]
        cosine = cosines.gather(1, own)
        moved = add_angle(cosine, math.radians(self.margin))
        # A copy: the graph needs this t, even if the next batch comes before backward.
        t = self.t.to(cosines.dtype, copy=True)
        others = torch.where(cosines > moved, cosines * (t + cosines), cosines)
        if self.training:
            self.t.lerp_(cosine.detach().mean().to(self.t.dtype), self.rate)
        return F.cross_entropy(self.scale * others.scatter(1, own, moved), targets)
