"""AdaCos: softmax on cosines with a scale that follows the training."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ._cosine_classifier import CosineWeights

_LEAST = 1.0  # of the scale


class AdaCosLoss(CosineWeights):
    """Classify by cosines, with a scale that is computed and not chosen.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes, t_ic the angle
    between f_i and w_c, and s the scale::

        L   = mean of -log( exp(s cos t_iy) / sum_c exp(s cos t_ic) )
        s_0 = sqrt(2) log(C - 1)
        s_k = log(B_k) / cos(min(pi/4, median of t_iy)),
        B_k = mean over the images of sum_{c != y} exp(s_(k-1) cos t_ic)

    The first batch has the scale s_0, and each later one that of its own images. The scale is a
    constant in the gradient. After ``eval()`` it does not change. With ``dynamic=False`` it is s_0
    throughout, the fixed AdaCos of the paper.

    Differs from the paper in:
        * the scale is at least 1. The paper's is 0 for two classes, which cannot be learned, and
          may fall below 0 for few.
        * of an even number of images, the median is the smaller of the two middle angles; the paper
          does not say.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        dynamic: whether the scale changes.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Zhang, Zhao, Qiao, Wang, Li. AdaCos: Adaptively Scaling Cosine Logits for Effectively
        Learning Deep Face Representations. CVPR 2019, arXiv:1905.00292, section 4.
    """

    paper: ClassVar[str] = (
        "Zhang et al. 2019, AdaCos: Adaptively Scaling Cosine Logits for Effectively Learning "
        "Deep Face Representations"
    )
    related = "normface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(self, num_classes: int, embedding_size: int, dynamic: bool = True) -> None:
        super().__init__(num_classes, embedding_size)
        self.dynamic = dynamic
        fixed = math.sqrt(2) * math.log(num_classes - 1) if num_classes > 1 else 0.0
        self.scale: Tensor
        self.seen: Tensor
        self.register_buffer("scale", torch.tensor(max(_LEAST, fixed)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # batches

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy of the scaled cosines, at the new scale."""
        cosines, targets = self.cosines(embeddings, labels)
        if self.dynamic and self.training:
            self._adapt(cosines, targets)
        # A copy: the graph needs this scale, even if the next batch comes before backward.
        return F.cross_entropy(self.scale.to(cosines.dtype, copy=True) * cosines, targets)

    @torch.no_grad()
    def _adapt(self, cosines: Tensor, targets: Tensor) -> None:
        if self.num_classes > 1:
            own = targets[:, None]
            others = (self.scale * cosines).scatter(1, own, -torch.inf)
            log_mean = others.flatten().logsumexp(0) - math.log(len(targets))
            # cos(min(pi/4, angle)); the median of torch is the smaller of the two in the middle.
            middle = -(-cosines.gather(1, own)).median()
            scale = log_mean / middle.clamp_min(math.sqrt(0.5))
            self.scale.copy_(torch.where(self.seen > 0, scale.clamp_min(_LEAST), self.scale))
        self.seen += 1
