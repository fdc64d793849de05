"""ArcFace."""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._cosine_classifier import CosineClassifier, add_angle
from ._require import require_positive


class ArcFaceLoss(CosineClassifier):
    """Classify by cosines, with an additive margin on the angle to the own class.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes, t_c the angle
    between f and w_c, s the scale and m the margin::

        L = mean of -log( exp(s cos(t_y + m)) / Z )
        Z = exp(s cos(t_y + m)) + sum_{c != y} exp(s cos t_c)

    Beyond t_y = pi - m, where cos(t_y + m) would rise again, it is replaced by cos t_y - m sin m,
    as in the authors' code.

    No angle is computed: cos(t + m) = cos t cos m - sin t sin m, where sin t has derivative 0 at
    t = 0. It equals pytorch-metric-learning's ArcFaceLoss, which uses acos, whose derivative at
    cosine 1 is infinite; PML relies on PyTorch's clamp having none at its bounds, which is not so
    in every version.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 64 in the paper.
        margin: m in degrees; 28.6, which are 0.5 rad, in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Deng, Guo, Xue, Zafeiriou. ArcFace: Additive Angular Margin Loss for Deep Face Recognition.
        CVPR 2019, arXiv:1801.07698, section 2.
    """

    paper: ClassVar[str] = (
        "Deng et al. 2019, ArcFace: Additive Angular Margin Loss for Deep Face Recognition"
    )
    related = "cosface, sphereface, subcenter_arcface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(
        self, num_classes: int, embedding_size: int, scale: float = 64.0, margin: float = 28.6
    ) -> None:
        super().__init__(num_classes, embedding_size)
        require_positive(scale=scale)
        if not 0 <= margin <= 90:
            raise UserError(f"margin must be from 0 to 90 degrees, not {margin}")
        self.scale = scale
        self.margin = margin

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy of the scaled cosines, the own class' with its margin."""
        cosines, targets = self.cosines(embeddings, labels)
        own = targets[:, None]
        moved = add_angle(cosines.gather(1, own), math.radians(self.margin))
        return F.cross_entropy(self.scale * cosines.scatter(1, own, moved), targets)
