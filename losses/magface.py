"""MagFace."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._cosine_classifier import CosineClassifier, add_angle, lengths
from ._require import require_not_negative, require_positive


class MagFaceLoss(CosineClassifier):
    """Use ArcFace with a margin that grows with the length of the embedding, and reward length.

    With x the embeddings, a = |x|, w the L2-normalised weights of the classes, t_c the angle
    between x and w_c, s the scale, and l and u the lower and upper bounds::

        L    = mean of -log( exp(s cos(t_y + m(a))) / Z ) + reward g(a)
        Z    = exp(s cos(t_y + m(a))) + sum_{c != y} exp(s cos t_c)
        m(a) = l_m + (u_m - l_m) (a - l_a) / (u_a - l_a)
        g(a) = 1/a + a / u_a²,  least at a = u_a

    A long embedding has a large margin, so that only images that are near their class can afford
    length: it tells their quality. The search uses cosines, which do not depend on it.

    Lengths count as l_a if they are shorter, and as u_a if they are longer; these have no gradient
    along the embedding, as in the authors' code. So the bounds must suit the network: with shorter
    embeddings it is ArcFace with a margin of l_m.

    Differs from the paper in:
        * the cosine beyond t_y = pi - m, which is that of ArcFace, as the paper does not say. The
          authors' code leaves the margin out beyond 90 degrees.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 64 in the paper.
        lower_norm: l_a; 10 in the paper.
        upper_norm: u_a; 110 in the paper.
        lower_margin: l_m in degrees; 25.8, which are 0.45 rad, in the paper.
        upper_margin: u_m in degrees; 45.8, which are 0.8 rad, in the paper.
        reward: lambda_g of the paper, 35.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar. With one class, only
        the last term remains. A gallery and mined pairs have no meaning for it.

    Reference:
        Meng, Zhao, Huang, Zhou. MagFace: A Universal Representation for Face Recognition and
        Quality Assessment. CVPR 2021, arXiv:2103.06627, section 3.
    """

    paper: ClassVar[str] = (
        "Meng et al. 2021, MagFace: A Universal Representation for Face Recognition and Quality "
        "Assessment"
    )
    related = "arcface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    normalises = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        lower_norm: float = 10.0,
        upper_norm: float = 110.0,
        lower_margin: float = 25.8,
        upper_margin: float = 45.8,
        reward: float = 35.0,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        require_positive(scale=scale, lower_norm=lower_norm, upper_norm=upper_norm)
        require_not_negative(reward=reward)
        if not lower_norm < upper_norm:
            raise UserError(
                f"lower_norm must be below upper_norm, not {lower_norm} and {upper_norm}"
            )
        if not 0 <= lower_margin <= upper_margin <= 90:
            raise UserError(
                "lower_margin and upper_margin must be from 0 to 90 degrees, the upper not the "
                f"smaller, not {lower_margin} and {upper_margin}"
            )
        self.scale = scale
        self.lower_norm = lower_norm
        self.upper_norm = upper_norm
        self.lower_margin = lower_margin
        self.upper_margin = upper_margin
        self.reward = reward

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy with the margins, and the mean of g."""
        cosines, targets = self.cosines(embeddings, labels)
        own = targets[:, None]
        norms = lengths(embeddings).clamp(self.lower_norm, self.upper_norm)
        share = (norms - self.lower_norm) / (self.upper_norm - self.lower_norm)
        margins = self.lower_margin + (self.upper_margin - self.lower_margin) * share
        moved = add_angle(cosines.gather(1, own), margins.deg2rad())
        entropy = F.cross_entropy(self.scale * cosines.scatter(1, own, moved), targets)
        return entropy + self.reward * (1 / norms + norms / self.upper_norm**2).mean()
