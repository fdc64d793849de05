"""How many images a positive has above it, softly: shared by losses that smooth a ranking."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ._shared import Masks

_BLOCK_ELEMENTS = 1 << 22  # anchors x positives x gallery in a block: 16 MB for each temporary


class Above(NamedTuple):
    """For K places of each of N anchors, how many images are above the positive in that place.

    Attributes:
        positives: (N, K) the number of other positives, each counted by a step function.
        negatives: (N, K) likewise the number of negatives.
        valid: (N, K) whether there is a positive in that place; the numbers are 0 where not.
    """

    positives: Tensor
    negatives: Tensor
    valid: Tensor


def above(
    scores: Tensor,
    pairs: Masks,
    step: Callable[[Tensor], Tensor],
    step_to_negatives: Callable[[Tensor], Tensor] | None = None,
) -> Above:
    """Count the images above each positive p of an anchor a, softly.

    An image j counts as ``step(scores[a, j] - scores[a, p])``. The time is N M times the positives
    of an anchor, the memory N M: blocks of anchors are computed one after the other, and once more
    for the gradient.

    Args:
        scores: (N, M) of an anchor and each image of its gallery.
        pairs: which of them are positives and negatives.
        step: from 0 for images far below to 1 far above.
        step_to_negatives: another one for the negatives.
    """
    places = most_positives(pairs.positive)
    # The positives first. Each place is a column of its own, so that no gradient is added twice.
    order = pairs.positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :places]
    valid = torch.arange(places, device=scores.device) < pairs.positive.sum(1, keepdim=True)
    rows = max(1, _BLOCK_ELEMENTS // (places * scores.shape[1]))
    count = partial(_count, step, step_to_negatives or step)
    counted = [
        checkpoint(count, *block, use_reentrant=False, preserve_rng_state=False)
        for block in zip(*(torch.split(x, rows) for x in (scores, order, *pairs)), strict=True)
    ]
    positives, negatives = (torch.cat(part) for part in zip(*counted, strict=True))
    return Above(torch.where(valid, positives, 0), torch.where(valid, negatives, 0), valid)


def most_positives(positive: Tensor) -> int:
    """Return at least the number of positives of any anchor, at least 1.

    It is exact on a CPU, where it saves work; elsewhere the host would have to wait for it.
    """
    if positive.device.type == "cpu" and len(positive):
        return max(1, int(positive.sum(1).max()))
    return positive.shape[1]


def _count(
    step: Callable[[Tensor], Tensor],
    step_to_negatives: Callable[[Tensor], Tensor],
    scores: Tensor,
    order: Tensor,
    positive: Tensor,
    negative: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return for a block of anchors the numbers of positives and of negatives (n, K) above."""
    gap = scores[:, None] - scores.gather(1, order)[:, :, None]
    others = positive[:, None].repeat(1, order.shape[1], 1).scatter_(2, order[:, :, None], False)
    positives = torch.where(others, step(gap), 0).sum(2)
    return positives, torch.where(negative[:, None], step_to_negatives(gap), 0).sum(2)
