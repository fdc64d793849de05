"""The base class of losses that compare images by the distance of a space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from zoo.base import Space
from zoo.errors import UserError

from ._shared import AnchorLoss, Masks, Mean


class SpaceLoss(AnchorLoss):
    """A loss of the distances between all images; the subclass writes :meth:`of_distances`.

    Args:
        space: of the run; ``zoo.build("spaces", "hyperbolic")`` makes one.

    Raises:
        UserError: there is no space.
    """

    spaces: ClassVar[Sequence[str]] = ("hyperbolic", "euclidean")
    normalises = False

    def __init__(self, space: Space | None) -> None:
        super().__init__()
        if space is None:
            name = type(self).__name__
            raise UserError(f"{name} compares images in a space; set model.space=hyperbolic")
        self.space = space

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the means over anchors."""
        points = self.space.points(anchors)
        others = points if gallery is anchors else self.space.points(gallery)
        return self.of_distances(self.space.distances(points, others), pairs)

    def of_distances(self, distances: Tensor, pairs: Masks) -> list[Mean]:
        """Return the means, from distances (n, M)."""
        raise NotImplementedError
