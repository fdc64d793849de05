"""Keeps the state of a loss equal in all processes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UserError
from zoo.parallel.ranks import Ranks


def align(loss: nn.Module, ranks: Ranks, name: str) -> None:
    """Make a loss's state that of the first process, from which others differ by rounding.

    Raises:
        UserError: they differ by more.
    """
    if ranks.alone:
        return
    state = loss.state_dict()
    extra = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
    extra_of_first = ranks.from_first(lambda: extra)
    for key, mine in state.items():
        first = extra_of_first.get(key) if key in extra else _tensor_of_first(mine, ranks)
        if not _alike(first, mine):
            raise UserError(
                f"{name} has another state ({key}) in process {ranks.rank + 1} than in the first; "
                "a loss must compute the same in each: it may draw random numbers only from torch, "
                "Python or NumPy's global generators"
            )
        state[key] = first
    loss.load_state_dict(state)


def _tensor_of_first(mine: Tensor, ranks: Ranks) -> Tensor:
    first = mine.clone()
    ranks.copy_first([first])
    return first


def _alike(a: Any, b: Any) -> bool:
    """Return whether two states are equal up to rounding: tensors, and plain data with tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype
        return same and torch.allclose(a, b.to(a.device), rtol=1e-3, atol=1e-5, equal_nan=True)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return _alike(torch.tensor(a), torch.tensor(b))
    return bool(a == b)
