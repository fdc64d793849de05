"""Pairs that violate a margin for their kind."""

from __future__ import annotations

from typing import ClassVar

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, split, squared_distances


class PairMarginMiner(Miner):
    """Take positive pairs farther than one margin, and negative pairs nearer than another.

    With d the Euclidean distances on the unit sphere::

        (a, p) if d_ap > pos_margin            (a, n) if d_an < neg_margin

    With the defaults, those are the pairs for which the contrastive loss is not 0. The paper mines
    nothing, and does not normalise; pytorch-metric-learning's margins are 0.2 and 0.8.

    Args:
        pos_margin: 0 in the paper.
        neg_margin: 1 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, anchors,
        negatives).

    Reference:
        Hadsell, Chopra, LeCun. Dimensionality Reduction by Learning an Invariant Mapping. CVPR
        2006, section 2.1.
    """

    paper: ClassVar[str] = (
        "Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping"
    )

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0) -> None:
        super().__init__()
        for name, value in (("pos_margin", pos_margin), ("neg_margin", neg_margin)):
            if not 0 <= value <= 2:
                raise UserError(f"{name} is a distance on the unit sphere, 0 to 2, not {value}")
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin

    def pick(self, pairs: Pairs) -> Indices:
        """Return the pairs beyond their margin."""
        d = squared_distances(pairs).sqrt()
        return split(pairs.positive & (d > self.pos_margin), pairs.negative & (d < self.neg_margin))
