"""Hard-aware deeply cascaded embedding (HDC), all of its levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._levels import OfLevels
from ._require import require_positive
from ._shared import Loss, masks, unit, unit_distances


class HDCCascadeLoss(OfLevels, Loss):
    """Train each level only on the pairs that were hardest for the level before it.

    With d² the squared distance of a pair on the unit sphere of a level, its loss there is that of
    contrastive learning::

        d²  for a positive pair,   max(0, margin - d²)  for a negative one

    Level 1 sees all pairs. Level k sees those of the pairs of level k - 1 that have the largest
    loss there: as many as are the share h_k of all positive pairs, and h_k of all negative ones.
    Pairs without a loss are ordered by their distance; equal ones stay together. The value is::

        L = sum over the levels of the mean of the losses above 0 of its pairs

    So easy pairs train only the first level, and the hardest train all of them. In the paper the
    levels are outputs of a network at growing depth, which a backbone of several levels has, such
    as ``bn_inception`` with ``levels``; parts of one embedding (``model.slices``) also work.

    The miner ``hdc`` (:class:`zoo.miners.hdc.HDCMiner`) keeps the hardest pairs for any loss of one
    level; what a level of the cascade sees is what the miner picks in the level before.

    Differs from the paper in:
        * the layer that the authors published picks the pairs of each level among all pairs, by the
          level's own loss. Here they are picked as the paper says.
        * the mean is over the pairs with a loss, as in this layer; the paper has a sum.

    Args:
        level_sizes: the size of each level.
        fractions: h of each level, not growing; 1, 0.5 and 0.2 in the paper. Those of levels that
            there are not are unused. A first one below 1 is of the pairs by level 1's own loss.
        margin: of negatives, in squared distance; 1 in the authors' configs.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. Without positives, or
        without negatives, only the other kind counts; one image gives 0.

    Reference:
        Yuan, Yang, Zhang. Hard-Aware Deeply Cascaded Embedding. ICCV 2017, arXiv:1611.05720.
    """

    paper: ClassVar[str] = "Yuan et al. 2017, Hard-Aware Deeply Cascaded Embedding"
    related = "contrastive"
    kind = "pair"
    cost = "N² log N"
    sampler = "m_per_class"

    def __init__(
        self,
        level_sizes: Sequence[int],
        fractions: Sequence[float] = (1.0, 0.5, 0.2),
        margin: float = 1.0,
    ) -> None:
        super().__init__(level_sizes)
        require_positive(margin=margin)
        used = fractions[: len(level_sizes)]
        if len(used) < len(level_sizes):
            raise UserError(
                f"fractions must be one for each of the {len(level_sizes)} levels, and there are "
                f"only {len(used)}"
            )
        if any(not 0 < h <= 1 for h in used) or list(used) != sorted(used, reverse=True):
            raise UserError(
                f"fractions must be above 0, at most 1 and not grow, not {list(fractions)}"
            )
        self.fractions = tuple(used)
        self.margin = margin

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the sum over the levels."""
        pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        kinds = [mask.triu(1) for mask in pairs]  # each pair once
        counts = [mask.sum() for mask in kinds]
        total = embeddings.new_zeros(())
        hardness: list[Tensor] = []
        for level, fraction in zip(self.levels(embeddings), self.fractions, strict=True):
            f = unit(level)
            d = unit_distances(f, f)
            mine = [d.detach(), -d.detach()]
            by = hardness or mine
            kinds = [
                _hardest(h, mask, fraction, count)
                for h, mask, count in zip(by, kinds, counts, strict=True)
            ]
            values = [
                torch.where(kinds[0], d, 0),
                torch.where(kinds[1], F.relu(self.margin - d), 0),
            ]
            total = total + _mean_above_0(torch.stack(values))
            hardness = mine
        return total


def _hardest(hardness: Tensor, among: Tensor, fraction: float, count: Tensor) -> Tensor:
    """Return which of some pairs are among the hardest, a share of a count of pairs."""
    if fraction == 1:
        return among
    ordered = hardness.masked_fill(~among, -torch.inf).flatten().sort(descending=True).values
    least = (fraction * count - 1e-9).ceil().long()  # 0.1 of 30 is 3.0000000000000004
    threshold = ordered.gather(0, (least - 1).clamp_min(0).reshape(1))
    return among & (hardness >= threshold)


def _mean_above_0(values: Tensor) -> Tensor:
    return values.sum() / (values > 0).sum().clamp_min(1)
