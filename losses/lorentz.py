"""The ranking loss of hierarchies in the Lorentz model of hyperbolic geometry."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.base import Space

from ._in_space import SpaceLoss
from ._shared import Masks, Mean


class LorentzLoss(SpaceLoss):
    """Raise the share that related images have in what is near, in a hyperbolic space.

    With d the distance of the space, and N(i, j) the images that are less similar to i than j is,
    of which there are here all negatives, and j itself (section 3.2)::

        L = mean over i of the mean over j in P(i) of
            -log( exp(-d_ij) / sum_{k in N(i, j)} exp(-d_ik) )

    It is :class:`HypViTLoss` without a temperature, and with equal weight for each anchor.

    A run needs ``model.space=hyperbolic``, which ``lorentz_glyphs`` and ``lorentz_folder`` set;
    without a space the loss is refused.

    Differs from the paper in:
        * what is learned. The paper learns the points themselves by Riemannian gradient descent.
          A network's outputs are tangent vectors at the origin, which the space maps to points, so
          that any optimiser works.
        * N(i, j): the paper samples from the images that are less similar; these are all images of
          other classes in the batch.

    Args:
        space: of the run, ``model.space``. The paper's has curvature 1 and no clipping.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0.

    Reference:
        Nickel, Kiela. Learning Continuous Hierarchies in the Lorentz Model of Hyperbolic Geometry.
        ICML 2018, arXiv:1806.03417, section 3.2.
    """

    paper: ClassVar[str] = (
        "Nickel & Kiela 2018, Learning Continuous Hierarchies in the Lorentz Model of Hyperbolic "
        "Geometry"
    )
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, space: Space | None = None) -> None:
        super().__init__(space)

    def of_distances(self, distances: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors."""
        negative = torch.where(pairs.negative, -distances, -torch.inf).logsumexp(1, keepdim=True)
        valid = pairs.positive & pairs.negative.any(1, keepdim=True)
        gap = torch.where(valid, -distances - torch.where(valid, negative, 0), 0)
        each = torch.where(valid, -torch.nn.functional.logsigmoid(gap), 0).sum(1)
        number = valid.sum(1)
        return [Mean.where(number > 0, each / number.clamp_min(1))]
