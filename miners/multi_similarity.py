"""Pairs of multi-similarity mining."""

from __future__ import annotations

from typing import ClassVar

import torch

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, cosines, split


class MultiSimilarityMiner(Miner):
    """Take negatives nearer than the farthest positive, and positives vice versa.

    With S the cosines, P(a) and Q(a) the positives and negatives of an anchor::

        (a, n) if S_an > min_{p in P(a)} S_ap - epsilon
        (a, p) if S_ap < max_{n in Q(a)} S_an + epsilon

    Anchors without positives or without negatives give no pairs. Each pair is compared with one
    number, in O(N²); pytorch-metric-learning sorts all rows.

    Args:
        epsilon: the tolerance of both comparisons; 0.1 in the paper.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, anchors,
        negatives).

    Reference:
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep
        Metric Learning. CVPR 2019, arXiv:1904.06627, section 4.
    """

    paper: ClassVar[str] = (
        "Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting for Deep Metric "
        "Learning"
    )

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        if not 0 <= epsilon <= 2:
            raise UserError(f"epsilon is a difference of cosines: from 0 to 2, not {epsilon}")
        self.epsilon = epsilon

    def pick(self, pairs: Pairs) -> Indices:
        """Return the pairs that are hard in comparison with the other kind."""
        s = cosines(pairs)
        farthest = s.masked_fill(~pairs.positive, torch.inf).amin(1, keepdim=True)
        nearest = s.masked_fill(~pairs.negative, -torch.inf).amax(1, keepdim=True)
        positive = pairs.positive & (s < nearest + self.epsilon)
        return split(positive, pairs.negative & (s > farthest - self.epsilon))
