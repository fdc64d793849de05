"""All triplets that violate the margin."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances, triplets


class HardTripletMiner(Miner):
    """Take all triplets whose negative is not farther than the positive by more than the margin.

    With D the squared Euclidean distances on the unit sphere, all (a, p, n) with::

        D_an - D_ap <= margin

    Those are the triplets for which ``D_ap + margin < D_an`` does not hold yet. At first these are
    nearly all triplets, whose number grows as N² times the images of a class.
    pytorch-metric-learning makes a mask of N x N x N, however few there are, and uses distances
    that are not squared.

    Args:
        margin: in units of squared distance; 0.2 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and
        Clustering. CVPR 2015, arXiv:1503.03832, section 3.1.
    """

    paper: ClassVar[str] = (
        "Schroff et al. 2015, FaceNet: A Unified Embedding for Face Recognition and Clustering"
    )

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        if not 0 <= margin <= 4:
            raise UserError(f"margin is of squared distances: from 0 to 4, not {margin}")
        self.margin = margin

    def pick(self, pairs: Pairs) -> Indices:
        """Return the triplets that violate the margin."""
        d = squared_distances(pairs)

        def violating(a: Tensor, p: Tensor) -> Tensor:
            return pairs.negative[a] & (d[a] - d[a, p][:, None] <= self.margin)

        return triplets(pairs.positive, violating)
