"""Sub-center ArcFace."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._shared import unit
from .arcface import ArcFaceLoss


class SubCenterArcFaceLoss(ArcFaceLoss):
    """Use ArcFace with several centres for each class, of which the nearest counts.

    With f the L2-normalised embeddings, w_c^k the L2-normalised K centres of class c, s the scale
    and m the margin::

        cos t_c = max_k f . w_c^k
        L       = mean of -log( exp(s cos(t_y + m)) / Z )
        Z       = exp(s cos(t_y + m)) + sum_{c != y} exp(s cos t_c)

    An image needs to be near only one centre of its class, so that noisy images can gather at
    another centre than the clean ones. With K = 1 it is ArcFace, and cos(t + m) beyond t = pi - m
    is replaced as there. It equals pytorch-metric-learning's SubCenterArcFaceLoss, which uses acos,
    whose derivative at cosine 1 is infinite.

    Differs from the paper in:
        * the cleaning of the data. The paper then drops the images that are further than 75 degrees
          from the largest centre of their class, and trains again with K = 1. A loss cannot drop
          images of a data set.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 64 in the paper.
        margin: m in degrees; 28.6, which are 0.5 rad, in the paper.
        sub_centers: K; 3 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Deng, Guo, Liu, Gong, Zafeiriou. Sub-center ArcFace: Boosting Face Recognition by
        Large-scale Noisy Web Faces. ECCV 2020, section 3.
    """

    paper: ClassVar[str] = (
        "Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy "
        "Web Faces"
    )
    related = "soft_triple"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin: float = 28.6,
        sub_centers: int = 3,
    ) -> None:
        super().__init__(num_classes, embedding_size, scale, margin)
        if sub_centers < 1:
            raise UserError(f"sub_centers must be at least 1, not {sub_centers}")
        self.weight = nn.Parameter(torch.randn(num_classes, sub_centers, embedding_size))

    def all_cosines(self, embeddings: Tensor) -> Tensor:
        """Return the cosines (N, C) to the nearest centre of each class."""
        centers = unit(self.weight.to(embeddings.dtype).flatten(0, 1))
        cosines = torch.unflatten(unit(embeddings) @ centers.T, 1, self.weight.shape[:2])
        return cosines.amax(2)
