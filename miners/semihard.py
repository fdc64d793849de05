"""Semi-hard triplets."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances, triplets


class SemihardMiner(Miner):
    """Take triplets whose negative is farther than the positive, but by less than the margin.

    With D the squared Euclidean distances on the unit sphere, all (a, p, n) with::

        0 < D_an - D_ap <= margin

    The paper takes one such negative for every positive pair, without saying which; here all are
    taken, as in pytorch-metric-learning, which uses distances that are not squared and a mask of
    N x N x N.

    Args:
        margin: in units of squared distance; 0.2 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and
        Clustering. CVPR 2015, arXiv:1503.03832, section 3.2.
    """

    paper: ClassVar[str] = (
        "Schroff et al. 2015, FaceNet: A Unified Embedding for Face Recognition and Clustering"
    )

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        if not 0 < margin <= 4:
            raise UserError(f"margin is of squared distances: above 0 to 4, not {margin}")
        self.margin = margin

    def pick(self, pairs: Pairs) -> Indices:
        """Return the triplets within the margin."""
        d = squared_distances(pairs)

        def within(a: Tensor, p: Tensor) -> Tensor:
            gap = d[a] - d[a, p][:, None]
            return pairs.negative[a] & (gap > 0) & (gap <= self.margin)

        return triplets(pairs.positive, within)
