"""What losses that contain another loss need: is it one that they can use?"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable

import torch
from torch import nn

from zoo.errors import FAILURES, UserError, words_of


def require_any_size(loss: nn.Module, sizes: Iterable[int], name: str) -> None:
    """Refuse a loss that fails with embeddings of the sizes that it will be given.

    A copy is tried, so that the loss learns nothing from it.

    Raises:
        UserError: names both losses, and says why it failed.
    """
    y = torch.arange(8) % 2
    with torch.random.fork_rng(devices=[]):
        for size in dict.fromkeys(sizes):
            try:
                copy.deepcopy(loss)(torch.randn(8, size), y)
            except FAILURES as error:
                raise UserError(
                    f"{name} gives {type(loss).__name__} embeddings of {size} numbers, with which "
                    f"it fails ({words_of(error)}); choose a loss without weights or memory"
                ) from error


def takes_image_ids(loss: nn.Module) -> bool:
    """Return whether a loss asks which images of the training data it is given."""
    return "image_ids" in inspect.signature(loss.forward).parameters
