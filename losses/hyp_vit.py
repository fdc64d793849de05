"""The pairwise cross entropy of hyperbolic vision transformers."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.base import Space

from ._in_space import SpaceLoss
from ._require import require_positive
from ._shared import Masks, Mean


class HypViTLoss(SpaceLoss):
    """Tell the positive of each pair from all negatives by the distance in a hyperbolic space.

    With d the distance of the space and tau the temperature (Eq. 6)::

        l_ij = -log( exp(-d_ij / tau) / (exp(-d_ij / tau) + sum_{k in Q(i)} exp(-d_ik / tau)) )

        L = mean of l_ij over the ordered positive pairs whose anchor has a negative

    A run needs ``model.space=hyperbolic``, which ``hyp_vit_glyphs`` and ``hyp_vit_folder`` set;
    without a space the loss is refused.

    Differs from the paper in:
        * the batch. The paper has two images of a class in a batch for each l_ij, and with more it
          adds the losses of all pairs of columns; the sum in Eq. 6 then has one image of each other
          class. Here it has all negatives, so that any batch will do. For two images of each class
          in the batch, the paper has half of these negatives in each sum.

    Args:
        space: of the run, ``model.space``: its curvature and clipping are the paper's by default.
        temperature: tau; 0.2 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0.

    Reference:
        Ermolov, Mirvakhabova, Khrulkov, Sebe, Oseledets. Hyperbolic Vision Transformers: Combining
        Improvements in Metric Learning. CVPR 2022, arXiv:2203.10833, section 3.2.
    """

    paper: ClassVar[str] = (
        "Ermolov et al. 2022, Hyperbolic Vision Transformers: Combining Improvements in Metric "
        "Learning"
    )
    related = "lorentz, ntxent"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, space: Space | None = None, temperature: float = 0.2) -> None:
        require_positive(temperature=temperature)
        super().__init__(space)
        self.temperature = temperature

    def of_distances(self, distances: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean of l_ij."""
        logits = -distances / self.temperature
        negative = torch.where(pairs.negative, logits, -torch.inf).logsumexp(1, keepdim=True)
        valid = pairs.positive & pairs.negative.any(1, keepdim=True)
        gap = torch.where(valid, logits - torch.where(valid, negative, 0), 0)
        return [Mean.where(valid, -torch.nn.functional.logsigmoid(gap))]
