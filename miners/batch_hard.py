"""The hardest triplet of each anchor."""

from __future__ import annotations

from typing import ClassVar

import torch

from ._shared import Indices, Miner, Pairs, squared_distances


class BatchHardMiner(Miner):
    """Take for each anchor its farthest positive and its nearest negative.

    Anchors without a positive or without a negative give no triplet. Ties are broken arbitrarily.

    Args:
        normalise: whether distances are on the unit sphere; False in the paper, which finds
            normalised embeddings no better. Miner and loss should use the same distance.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Hermans, Beyer, Leibe. In Defense of the Triplet Loss for Person Re-Identification.
        arXiv:1703.07737, section 2.
    """

    paper: ClassVar[str] = (
        "Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification"
    )

    def __init__(self, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise

    def pick(self, pairs: Pairs) -> Indices:
        """Return a triplet for each anchor."""
        if self.normalise:
            d = squared_distances(pairs)
        else:
            # Distances by products would be off by 1e-3 of the length for similar images.
            exact = "donot_use_mm_for_euclid_dist"
            d = torch.cdist(pairs.x, pairs.gallery, compute_mode=exact)
        farthest = d.masked_fill(~pairs.positive, -torch.inf).argmax(1)
        nearest = d.masked_fill(~pairs.negative, torch.inf).argmin(1)
        (a,) = (pairs.positive.any(1) & pairs.negative.any(1)).nonzero(as_tuple=True)
        return a, farthest[a], nearest[a]
