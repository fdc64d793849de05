"""SphereFace (A-Softmax)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._cosine_classifier import CosineClassifier, lengths
from ._require import require_not_negative


class SphereFaceLoss(CosineClassifier):
    """Classify with a multiplicative margin on the angle to the own class.

    With the weights w of the classes on the unit sphere, x the unnormalised embeddings, t_c the
    angle between x and w_c, and m the margin::

        L      = mean of -log( exp(|x| psi(t_y)) / Z )
        Z      = exp(|x| psi(t_y)) + sum_{c != y} exp(|x| cos t_c)
        psi(t) = (-1)^k cos(m t) - 2k    for t from k pi/m to (k + 1) pi/m, which falls throughout

    psi is a polynomial of the cosine, so that its gradient is finite at all angles.

    Differs from the authors' code in:
        * ``softening``. Their code starts near the plain softmax: psi is replaced by
          (lambda cos t + psi) / (1 + lambda), lambda being max(5, 1000 / (1 + 0.12 i)) in iteration
          i, which reaches 5 after 6 % of the 28,000 iterations. Here ``softening`` is lambda. The
          default, 0, is the formula in the paper and the hardest case, which their code never
          reaches. To follow it in a config, write ``softening: 5``, or all of it as
          ``softening: {from: 1000, to: 5, until: 0.06, shape: geometric}``.
        * the gradient, which is that of the formula; their code normalises the two parts of it.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        margin: m, a whole number; 4 in the paper.
        softening: lambda, see above; 0 in the paper's formula, at least 5 in the authors' code.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Liu, Wen, Yu, Li, Raj, Song. SphereFace: Deep Hypersphere Embedding for Face Recognition.
        CVPR 2017, arXiv:1704.08063, section 3.
    """

    paper: ClassVar[str] = (
        "Liu et al. 2017, SphereFace: Deep Hypersphere Embedding for Face Recognition"
    )
    related = "l_softmax"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    normalises = False

    def __init__(
        self, num_classes: int, embedding_size: int, margin: int = 4, softening: float = 0.0
    ) -> None:
        super().__init__(num_classes, embedding_size)
        if not 1 <= margin <= 10:
            raise UserError(f"margin must be from 1 to 10, not {margin}")
        require_not_negative(softening=softening)
        self.margin = margin
        self.softening = softening

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy, the logit of the own class through psi."""
        cosines, targets = self.cosines(embeddings, labels)
        own = targets[:, None]
        cosine = cosines.gather(1, own)
        share = 1 / (1 + self.softening)
        moved = (1 - share) * cosine + share * self._psi(cosine)
        return F.cross_entropy(self._lengths(embeddings) * cosines.scatter(1, own, moved), targets)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes, without a margin."""
        return self._lengths(embeddings) * self.all_cosines(embeddings)

    def _lengths(self, embeddings: Tensor) -> Tensor:
        """Return what the cosines are multiplied by, here |x|; an embedding of 0 has logits 0."""
        return lengths(embeddings)

    def _psi(self, cosine: Tensor) -> Tensor:
        """Return (-1)^k cos(m t) - 2k; cos(n t) is 2 cos t cos((n-1) t) - cos((n-2) t)."""
        before, multiple = torch.ones_like(cosine), cosine
        for _ in range(self.margin - 1):
            before, multiple = multiple, 2 * cosine * multiple - before
        angle = cosine.detach().clamp(-1, 1).acos()
        k = (angle * (self.margin / math.pi)).floor()
        return (1 - 2 * (k % 2)) * multiple - 2 * k
