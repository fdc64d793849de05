"""The hardest pairs of a batch (HDC)."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances


class HDCMiner(Miner):
    """Take the farthest of all positive pairs and the nearest of all negative pairs of a batch.

    Distances are Euclidean, on the unit sphere. Of each kind of ordered pair, the hardest
    ``fraction`` is kept, rounded down as in the authors' code, so that of a single pair nothing may
    be left; pytorch-metric-learning rounds up. An anchor may have many of them or none.

    Differs from the paper in being one of its levels. There a network has several outputs, and each
    uses only the pairs that were hard for the one before; here the miner has one output. The loss
    ``hdc_cascade`` has all levels.

    Args:
        fraction: above 0, up to 1; the paper's three levels keep all, a half and a fifth.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, anchors,
        negatives), the hardest first.

    Reference:
        Yuan, Yang, Zhang. Hard-Aware Deeply Cascaded Embedding. ICCV 2017, arXiv:1611.05720.
    """

    paper: ClassVar[str] = "Yuan et al. 2017, Hard-Aware Deeply Cascaded Embedding"

    def __init__(self, fraction: float = 0.5) -> None:
        super().__init__()
        if not 0 < fraction <= 1:
            raise UserError(f"fraction must be above 0 and at most 1, not {fraction}")
        self.fraction = fraction

    def pick(self, pairs: Pairs) -> Indices:
        """Return the hardest pairs of either kind."""
        d = squared_distances(pairs)
        return *self._hardest(d, pairs.positive), *self._hardest(-d, pairs.negative)

    def _hardest(self, hardness: Tensor, of_kind: Tensor) -> Indices:
        a, other = of_kind.nonzero(as_tuple=True)
        count = math.floor(round(self.fraction * len(a), 6))  # 0.29 * 100 is below 29
        keep = hardness[a, other].topk(count).indices
        return a[keep], other[keep]
