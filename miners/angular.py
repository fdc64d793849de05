"""Triplets with too wide an angle at the negative."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances, triplets, unit


class AngularMiner(Miner):
    """Take triplets that violate the constraint of the angular loss.

    With f on the unit sphere and c = (f_a + f_p) / 2, all (a, p, n) with::

        ||f_a - f_p|| > 2 tan(angle) ||f_n - c||

    The squared distance to c follows from the cosines of n with a and p, so that no tensor
    (triplets, d) is needed. pytorch-metric-learning makes three of them, from a mask of N x N x N,
    and does not normalise: its result depends on the lengths of the embeddings.

    The paper states the constraint for its loss, and mines nothing.

    Args:
        angle: in degrees, above 0 and below 90; 45 is the paper's to our knowledge, which tries 36
            to 55; not confirmed.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Wang, Zhou, Wen, Liu, Lin. Deep Metric Learning with Angular Loss. ICCV 2017,
        arXiv:1708.01682.
    """

    paper: ClassVar[str] = "Wang et al. 2017, Deep Metric Learning with Angular Loss"

    def __init__(self, angle: float = 45.0) -> None:
        super().__init__()
        if not 0 < angle < 90:
            raise UserError(f"angle is in degrees, above 0 and below 90, not {angle}")
        self.angle = angle

    def pick(self, pairs: Pairs) -> Indices:
        """Return the triplets that violate the constraint."""
        anchors, gallery = unit(pairs.x), unit(pairs.gallery)
        d = squared_distances(pairs)  # of anchors and gallery
        between = squared_distances(pairs._replace(x=pairs.gallery))
        steep = math.tan(math.radians(self.angle)) ** 2

        def violating(a: Tensor, p: Tensor) -> Tensor:
            # The length of a median: 4 ||n - c||² = 2 ||n - a||² + 2 ||n - p||² - ||a - p||²
            side = (anchors[a] - gallery[p]).square().sum(1, keepdim=True)
            median = 2 * d[a] + 2 * between[p] - side
            return pairs.negative[a] & (side > steep * median)

        return triplets(pairs.positive, violating)
