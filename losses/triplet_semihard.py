"""Triplet loss with semi-hard negatives."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import AnchorLoss, Masks, Mean, safe_sqrt, unit, unit_distances


class TripletSemihardLoss(AnchorLoss):
    """Push, for every positive pair, the nearest negative that is farther than the positive.

    With D the distances of the L2-normalised embeddings, over the ordered positive pairs (a, p)::

        n(a,p) = argmin {D_an : n negative of a, D_an > D_ap}, if there is none the farthest one
        L      = mean of max(0, margin + D_ap - D_an(a,p))

    The negative is found by searching the sorted distances of its anchor: O(N² log N), not the N³
    comparisons of the usual code.

    Differs from FaceNet's rule in the same way as TensorFlow's code, which later papers (probably
    also Song et al. 2017, whose numbers the ICE paper quotes) used:
        * negatives beyond the margin also count as semi-hard; their triplets give 0, and enter the
          mean.
        * if no negative is farther than the positive, the farthest is taken.

    Args:
        margin: in units of D; 1 in TensorFlow's code, 0.2 in FaceNet, which squares D as well.
        squared: whether D is the squared distance (0 to 4) or the distance (0 to 2).

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. An anchor
        without positives or without negatives is left out; a batch of such anchors gives 0. A
        positive pair counts as often as it was mined; the negatives of an anchor are a set.

    Reference:
        Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and
        Clustering. CVPR 2015, section 3.2.
    """

    paper: ClassVar[str] = "Schroff et al. 2015, FaceNet: A Unified Embedding for Face Recognition"
    related = "margin, lifted_struct"
    kind = "triplet"
    cost = "N² log N"
    sampler = "m_per_class"

    def __init__(self, margin: float = 1.0, squared: bool = True) -> None:
        super().__init__()
        if not margin >= 0:
            raise UserError(f"margin must be at least 0, not {margin}")
        self.margin = margin
        self.squared = squared

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the positive pairs."""
        positive, negative = pairs
        f = unit(anchors)
        distance = unit_distances(f, f if gallery is anchors else unit(gallery))
        if not self.squared:
            distance = safe_sqrt(distance)
        chosen = _semihard(distance.detach(), negative)
        gap = distance - distance.gather(1, chosen) + self.margin
        valid = positive & negative.any(1, keepdim=True)
        return [Mean.where(valid, gap.clamp_min(0), pairs.positive_times)]


def _semihard(distance: Tensor, negative: Tensor) -> Tensor:
    """Return for each pair (a, p) the column of its negative (N, M); any column if a has none."""
    ascending, order = distance.masked_fill(~negative, torch.inf).sort(dim=1)
    farther = torch.searchsorted(ascending, distance.contiguous(), right=True)
    last = negative.sum(1, keepdim=True) - 1
    return order.gather(1, torch.minimum(farther, last).clamp_min(0))
