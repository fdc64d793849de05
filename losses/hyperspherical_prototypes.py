"""Hyperspherical prototype networks."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._classes import check_classes
from ._shared import Loss, OfImages, unit

_STEP = 0.1  # as in the authors' code
_BLOCK_ELEMENTS = 1 << 22


class HyperPrototypesLoss(OfImages, Loss):
    """Bring every image to a fixed prototype of its class, all of which are far from each other.

    With f the L2-normalised embeddings and p the prototypes, one for each class, on the sphere::

        L = mean of (1 - f . p_y)²

    The prototypes are placed before the training, and not learned: from random directions, they
    move against the gradient of::

        1/C sum_i max_{j != i} p_i . p_j

    so that each moves away from the nearest other. They are buffers, the same for the same seed in
    every process, and saved. For C <= d + 1 the best arrangement has cosines of -1 / (C - 1).

    Placing them takes O(C² d) for a step: with 200, on two cores, 0.3 seconds for 100 classes and 7
    for 1,162 (d = 128), whose largest cosine falls from 0.42 to 0.12. For tens of thousands of
    classes take fewer.

    Differs from the paper in:
        * it is a mean, the paper's a sum over the batch.
        * the placement. Its gradient is not divided by C, and the step falls linearly from 0.1 to
          0, so that the prototypes come to rest within few steps. The authors' code takes 10,000
          of 0.1 / C.
        * no prior knowledge. The paper can also place prototypes by word vectors of the class
          names; a loss does not know these.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d, at least 2.
        steps: of the placement; 0 leaves the random directions.
        seed: of the random directions.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar. A gallery and mined pairs
        have no meaning for it.

    Reference:
        Mettes, van der Pol, Snoek. Hyperspherical Prototype Networks. NeurIPS 2019,
        arXiv:1901.10514, section 2.
    """

    paper: ClassVar[str] = "Mettes et al. 2019, Hyperspherical Prototype Networks"
    related = "energy"
    kind = "proxy"
    cost = "N"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(
        self, num_classes: int, embedding_size: int, steps: int = 200, seed: int = 0
    ) -> None:
        super().__init__()
        if steps < 0:
            raise UserError(f"steps must be at least 0, not {steps}")
        if embedding_size < 2:
            raise UserError(f"embedding_size must be at least 2, not {embedding_size}")
        self.num_classes = num_classes
        self.steps = steps
        self.seed = seed
        self.prototypes: Tensor
        self.register_buffer("prototypes", _place(num_classes, embedding_size, steps, seed))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean squared distance of the cosine from 1."""
        check_classes(labels, self.num_classes)
        own = self.prototypes.to(embeddings.dtype)[labels.long()]
        return (1 - (unit(embeddings) * own).sum(1)).square().mean()


@torch.no_grad()
def _place(classes: int, dimensions: int, steps: int, seed: int) -> Tensor:
    """Return points (classes, dimensions) on the sphere, each far from the nearest other."""
    random = torch.Generator().manual_seed(seed)
    points = unit(torch.randn(classes, dimensions, generator=random))
    for step in range(steps if classes > 1 else 0):
        nearest = _nearest(points)
        # The gradient of p_i . p_j, with j the nearest of i, times the number of classes
        gradient = points[nearest].index_add_(0, nearest, points)
        points = unit(points - _STEP * (1 - step / steps) * gradient)
    return points


def _nearest(points: Tensor) -> Tensor:
    """Return the index (n,) of the nearest other point, in blocks of memory."""
    found = []
    block = max(1, _BLOCK_ELEMENTS // len(points))
    for start in range(0, len(points), block):
        cosines = points[start : start + block] @ points.T
        cosines.diagonal(start).fill_(-2)
        found.append(cosines.argmax(1))
    return torch.cat(found)
