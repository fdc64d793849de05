"""Calls a loss and a miner as training does; errors name the component."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.parallel.ranks import Ranks
from zoo.registry import contracts


def loss_of(
    loss: nn.Module,
    miner: Callable[[Tensor, Tensor], Any] | None,
    embeddings: Tensor,
    labels: Tensor,
    names: tuple[str, str],
    when: str,
    image_ids: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return the loss of embeddings (N, d), and the mined indices; None without a miner.

    Both are called like those of pytorch-metric-learning. ``names``, of the loss and the miner, and
    ``when``, the time of the call, are for messages. ``image_ids`` (N,) are given for a loss that
    takes them.

    Raises:
        UserError: if one of them fails, or returns something unusable.
    """
    mined: tuple[Any, ...] = ()  # without a miner, a loss need not take the argument
    if miner is not None:
        with blaming(f"{names[1]} {when}"):
            mined = (miner(embeddings.detach(), labels),)
        # Indices are checked only on the CPU: reading them on a GPU would make it wait.
        fault = contracts.mined(mined[0], None if embeddings.is_cuda else len(embeddings))
        if fault:
            raise UserError(f"{names[1]} {when} {fault}")
    with blaming(f"{names[0]} {when}"):
        more = {} if image_ids is None else {"image_ids": image_ids}
        value: Tensor = loss(embeddings, labels, *mined, **more)
    _check_loss(names[0], value)
    return value, mined[0] if mined else None


def takes_image_ids(loss: nn.Module) -> bool:
    """Return whether a loss asks which images of the training data it is given."""
    try:
        return "image_ids" in inspect.signature(loss.forward).parameters
    except ValueError:  # written in C: it has no signature
        return False


def part_of(
    loss: Any, ranks: Ranks, embeddings: Tensor, labels: Tensor, name: str, when: str
) -> Tensor:
    """Return what this process's anchors add to the loss of embeddings (N, d).

    ``loss.part(embeddings, labels, rows)`` returns totals (k,) and counts (k,). Added up over all
    processes, they are the loss, see :func:`sum_of_parts`.
    """
    with blaming(f"{name}.part {when}"):
        totals, counts = loss.part(embeddings, labels, ranks.share(len(labels)))
    counts = counts.detach().clone()
    ranks.sum([counts])
    value = sum_of_parts(totals, counts)
    _check_loss(name, value)
    return value


def sum_of_parts(totals: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of means with these totals (k,) and counts (k,); one without any is 0."""
    return (totals / counts.clamp_min(1)).sum()


def _check_loss(name: str, loss: Any) -> None:
    """Refuse a loss that cannot be minimised, without reading a number: a GPU would wait."""
    if not isinstance(loss, Tensor):
        got = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        got = "a number that does not depend on the embeddings"
    else:
        return
    raise UserError(f"{name} returned {got}; training needs a scalar with a graph")
