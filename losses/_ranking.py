"""How many images a positive has above it, softly: shared by losses that smooth a ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._shared import Masks

_BLOCK_ELEMENTS = 1 << 22  # anchors x positives x gallery in a block: 16 MB for each temporary

_Step = Callable[[Tensor], Tensor]


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
    step: _Step,
    step_to_negatives: _Step | None = None,
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
    counted = _Counted.apply(scores, order, *pairs, step, step_to_negatives or step)
    positives, negatives = (torch.where(valid, part, 0) for part in counted)
    return Above(positives, negatives, valid)


def most_positives(positive: Tensor) -> int:
    """Return at least the number of positives of any anchor, at least 1.

    It is exact on a CPU, where it saves work; elsewhere the host would have to wait for it.
    """
    if positive.device.type == "cpu" and len(positive):
        return max(1, int(positive.sum(1).max()))
    return positive.shape[1]


class _Counted(torch.autograd.Function):
    """What :func:`_count` gives, in blocks of anchors, computed once more for the gradient.

    torch.utils.checkpoint does the same, but its first call imports all of torch.compile: 1.5 s.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        order: Tensor,
        positive: Tensor,
        negative: Tensor,
        step: _Step,
        step_to_negatives: _Step,
    ) -> tuple[Tensor, Tensor]:
        given = (scores, order, positive, negative)
        ctx.save_for_backward(*given)
        ctx.steps = (step, step_to_negatives)
        counted = [_count(ctx.steps, *block) for block in _blocks(*given)]
        positives, negatives = (torch.cat(part) for part in zip(*counted, strict=True))
        return positives, negatives

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts: list[Tensor] = []
        for scores, *block, to_positives, to_negatives in _blocks(*ctx.saved_tensors, *gradients):
            with torch.enable_grad():
                x = scores.detach().requires_grad_()
                positives, negatives = _count(ctx.steps, x, *block)
                total = (positives * to_positives + negatives * to_negatives).sum()
            parts += torch.autograd.grad(total, x)
        return torch.cat(parts), *[None] * 5


def _blocks(scores: Tensor, order: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same rows of all tensors, few enough for :func:`_count`."""
    rows = max(1, _BLOCK_ELEMENTS // (order.shape[1] * scores.shape[1]))
    return zip(*(torch.split(x, rows) for x in (scores, order, *others)), strict=True)


def _count(
    steps: tuple[_Step, _Step], scores: Tensor, order: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for a block of anchors the numbers of positives and of negatives (n, K) above."""
    gap = scores[:, None] - scores.gather(1, order)[:, :, None]
    others = positive[:, None].repeat(1, order.shape[1], 1).scatter_(2, order[:, :, None], False)
    positives = torch.where(others, steps[0](gap), 0).sum(2)
    return positives, torch.where(negative[:, None], steps[1](gap), 0).sum(2)
