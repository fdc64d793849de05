"""What losses that contain another loss need: is it one that they can use?"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zoo.errors import FAILURES, UserError, words_of
from zoo.support.randomness import unchanged_randomness


def trial_batch(size: int) -> tuple[Tensor, Tensor]:
    """Return embeddings (8, size) of two classes, and their labels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, size, generator=generator), torch.arange(8) % 2


def failure(loss: nn.Module, *arguments: Tensor | None) -> str | None:
    """Return why a loss fails when it is called, or None; a copy is tried, which learns instead."""
    try:
        with unchanged_randomness():
            copy.deepcopy(loss)(*arguments)
    except FAILURES as error:
        return words_of(error)
    return None


def require_any_size(loss: nn.Module, sizes: Iterable[int], name: str) -> None:
    """Refuse a loss that fails with embeddings of the sizes that it will be given.

    Raises:
        UserError: names both losses, and says why it failed.
    """
    for size in dict.fromkeys(sizes):
        reason = failure(loss, *trial_batch(size))
        if reason is not None:
            raise UserError(
                f"{name} gives {type(loss).__name__} embeddings of {size} numbers, with which "
                f"it fails ({reason}); choose a loss without weights or memory"
            )
