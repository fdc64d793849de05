"""AdaFace."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError
from zoo.support.precision import upcast

from ._cosine_classifier import CosineWeights, add_angle, lengths
from ._require import require_positive
from ._shared import safe_sqrt

_EPS = 1e-3  # as in the authors' code


class AdaFaceLoss(CosineWeights):
    """Classify by cosines, with a margin on angle and cosine that depends on the image's quality.

    With x the embeddings, w the L2-normalised weights of the classes, t_c the angle between x and
    w_c, s the scale, m the margin and h the concentration, the quality of an image is its length
    relative to the mean and the standard deviation of the lengths::

        q = (|x| - mean) / (deviation / h), limited to -1 .. 1
        T = cos(t_y - m q) - m q - m
        L = mean of -log( exp(s T) / (exp(s T) + sum_{c != y} exp(s cos t_c)) )

    An image of low quality, q = -1, has ArcFace's margin, which gives easy images more weight; one
    with q = 0 CosFace's; and one of high quality, q = 1, a negative angular margin and twice
    CosFace's, which gives hard images more weight. q is a constant: its gradient is left out.

    Mean and deviation follow those of the batches: each becomes ``rate`` times that of the batch
    plus 1 - ``rate`` times the old, the batch itself included, from 20 and 100, as in the authors'
    code. After ``eval()`` they do not change.

    Differs from the paper in:
        * the ends of the cosine, for which it gives no rule: below angle 0 T takes that of 0, and
          beyond 180 degrees it goes on as ArcFace's does. The authors' code stays at 180 degrees,
          where an image opposite to its class has no gradient.
        * the lengths. The authors' code limits them to 100.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: s; 64 in the paper.
        margin: m; 0.4 in the paper. It is in radians for the angle and in units of cosine.
        concentration: h; 0.333 in the authors' code.
        rate: the share of a batch in the moving averages. 0.01, which keeps 0.99 of the old ones,
            is that of the authors' training script; the default of their class, 1.0, which keeps
            nothing, has no source in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Kim, Jain, Liu. AdaFace: Quality Adaptive Margin for Face Recognition. CVPR 2022,
        arXiv:2204.00964, section 3.
    """

    paper: ClassVar[str] = "Kim et al. 2022, AdaFace: Quality Adaptive Margin for Face Recognition"
    related = "magface, arcface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    normalises = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin: float = 0.4,
        concentration: float = 0.333,
        rate: float = 0.01,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        require_positive(scale=scale, concentration=concentration)
        if not 0 <= margin <= math.pi / 2:
            raise UserError(f"margin must be from 0 to 1.57, not {margin}")
        if not 0 <= rate <= 1:
            raise UserError(f"rate must be from 0 to 1, not {rate}")
        self.scale = scale
        self.margin = margin
        self.concentration = concentration
        self.rate = rate
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("deviation", torch.tensor(100.0))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy with the margins, and move mean and deviation."""
        cosines, targets = self.cosines(embeddings, labels)
        own = targets[:, None]
        shift = self.margin * self._quality(embeddings.detach())
        moved = _turn(cosines.gather(1, own), -shift) - shift - self.margin
        return F.cross_entropy(self.scale * cosines.scatter(1, own, moved), targets)

    @torch.no_grad()
    def _quality(self, embeddings: Tensor) -> Tensor:
        norms = lengths(embeddings)
        if self.training:
            deviation = norms.std(correction=min(1, len(norms) - 1))  # 0 for one image
            self.mean.lerp_(norms.mean().to(self.mean.dtype), self.rate)
            self.deviation.lerp_(deviation.to(self.mean.dtype), self.rate)
        standard = (norms - self.mean) / (self.deviation + _EPS)
        return (self.concentration * standard).clamp(-1, 1).to(norms.dtype)

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of a new loss in plain loops, in float64, with q as a constant.

        ``zoo.checks`` compares the gradient with it.
        """
        x = upcast(embeddings.detach()).double().requires_grad_()
        norms = x.detach().norm(dim=1)
        mean = self.rate * norms.mean() + (1 - self.rate) * self.mean
        deviation = (norms - norms.mean()).square().sum().div(max(1, len(x) - 1)).sqrt()
        deviation = self.rate * deviation + (1 - self.rate) * self.deviation
        total = x.sum() * 0
        for row, norm, y in zip(x, norms, labels.tolist(), strict=True):
            q = (self.concentration * (norm - mean) / (deviation + _EPS)).clamp(-1, 1)
            cosines = [row @ w / row.norm() / w.norm() for w in self.weight.detach().double()]
            angle = (cosines[y].acos() - self.margin * q).clamp_min(0)
            cosines[y] = angle.cos() - self.margin * q - self.margin
            total = total - torch.stack([self.scale * c for c in cosines]).log_softmax(0)[y]
        (gradient,) = torch.autograd.grad(total / len(x), x)
        return gradient


def _turn(cosine: Tensor, margin: Tensor) -> Tensor:
    """Return cos(t + m) of cosines cos t, with margins m of either sign; at most 1."""
    back = cosine * margin.cos() - safe_sqrt(1 - cosine.square()) * margin.sin()
    back = torch.where(cosine > margin.cos(), 1, back)
    return torch.where(margin < 0, back, add_angle(cosine, margin.clamp_min(0)))
