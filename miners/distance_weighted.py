"""Distance-weighted sampling."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, squared_distances


class DistanceWeightedMiner(Miner):
    """Draw for every positive pair a negative, so that all distances are equally likely.

    Points that are uniform on the sphere in n dimensions have distances with density
    ``q(d) ~ d^(n-2) (1 - d²/4)^((n-3)/2)``. A negative of an anchor is drawn with probability
    proportional to 1 / q(max(d, cutoff)), among those nearer than ``nonzero_loss_cutoff``; a pair
    whose anchor has no such negative gives no triplet.

    Differs from the authors' code, which then draws any image, and from pytorch-metric-learning,
    which also draws the positives, and one more than there are. PML also divides the weights of all
    anchors by the largest of the batch: in 512 dimensions one near pair makes those of most other
    anchors 0 in float32, and they give no triplets. Here each anchor has its own softmax of
    weights.

    Args:
        cutoff: nearer negatives are drawn as if they were at this distance; 0.5 in the paper.
        nonzero_loss_cutoff: farther ones are not drawn; 1.4 in the authors' code, where the margin
            loss at beta 1.2 and margin 0.2 ends.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives),
        which depend on PyTorch's random numbers.

    Reference:
        Wu, Manmatha, Smola, Krähenbühl. Sampling Matters in Deep Embedding Learning. ICCV 2017,
        arXiv:1706.07567, section 4.
    """

    paper: ClassVar[str] = "Wu et al. 2017, Sampling Matters in Deep Embedding Learning"
    random: ClassVar[bool] = True

    def __init__(self, cutoff: float = 0.5, nonzero_loss_cutoff: float = 1.4) -> None:
        super().__init__()
        if not 0 < cutoff < nonzero_loss_cutoff <= 2:
            raise UserError(
                f"cutoff {cutoff} and nonzero_loss_cutoff {nonzero_loss_cutoff}: 0 < cutoff < "
                "nonzero_loss_cutoff <= 2 is needed, as distances on the unit sphere end at 2"
            )
        self.cutoff = cutoff
        self.nonzero_loss_cutoff = nonzero_loss_cutoff

    def pick(self, pairs: Pairs) -> Indices:
        """Return one triplet for each positive pair whose anchor has a negative to draw."""
        d = squared_distances(pairs).sqrt()
        may = pairs.negative & (d < self.nonzero_loss_cutoff)
        positive = pairs.positive & may.any(1, keepdim=True)
        a, p = positive.nonzero(as_tuple=True)
        if not len(a):
            return a, p, p.clone()
        log_weights = _log_inverse_density(d.clamp_min(self.cutoff), pairs.x.shape[1])
        # A row with nothing to draw would be NaN; it is uniform instead, and ignored.
        nothing = ~may.any(1, keepdim=True)
        weights = log_weights.masked_fill(~may & ~nothing, -torch.inf).softmax(1)
        most = int(positive.sum(1).max())
        drawn = torch.multinomial(weights, most, replacement=True)
        nth = positive.cumsum(1)[a, p] - 1  # of the anchor's positives
        return a, p, drawn[a, nth]


def _log_inverse_density(d: Tensor, dimensions: int) -> Tensor:
    """Return -log q(d), up to a constant, of distances on the sphere."""
    off_axis = (1 - d.square() / 4).clamp_min(torch.finfo(d.dtype).eps)
    return (2 - dimensions) * d.log() - (dimensions - 3) / 2 * off_axis.log()
