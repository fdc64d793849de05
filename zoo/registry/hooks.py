"""Finds and reads the hooks that a component may have, see :class:`zoo.base.LossHooks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.errors import UserError, blaming

_GROUPS = "begin_epoch returns None, or a whole number for each training image"


def of_epochs(*components: object) -> Iterator[Any]:
    """Yield the modules, the components themselves or within them, that have a ``begin_epoch``."""
    for component in components:
        modules = component.modules() if isinstance(component, nn.Module) else [component]
        yield from (module for module in modules if hasattr(module, "begin_epoch"))


def rows_of(embeddings: Tensor, ids: Sequence[int] | None = None) -> Tensor:
    """Return the embeddings of some images, or of all, out of those of all."""
    return embeddings if ids is None else embeddings[list(ids)]


def groups_of(given: Any, images: int, name: str) -> NDArray[np.int64]:
    """Return what a ``begin_epoch`` returned as an array (n,).

    Raises:
        UserError: it is not one whole number for each training image.
    """
    groups = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if groups.shape != (images,) or groups.dtype.kind not in "iu":
        shape = f"an array of {groups.dtype} of shape {groups.shape}"
        raise UserError(f"{name} returned {shape} for {images:,} images; {_GROUPS}")
    return groups.astype(np.int64)


def parameter_groups(loss: nn.Module, name: str) -> list[tuple[list[nn.Parameter], float]]:
    """Return the trained parameters of a loss, grouped by the factor on their learning rate.

    Raises:
        UserError: a ``parameter_groups`` in it fails, or has a parameter twice or none of its own.
    """
    own = {id(p): p for p in loss.parameters() if p.requires_grad}
    factors: dict[int, float] = {}
    for module in loss.modules():
        declared = getattr(module, "parameter_groups", None)
        if declared is None:
            continue
        with blaming(f"parameter_groups of {name}"):
            given = [(list(group["params"]), float(group["lr_multiplier"])) for group in declared()]
        for parameters, factor in given:
            _check_group(parameters, factor, own.keys() - factors.keys(), name)
            factors |= {id(p): factor for p in parameters}
    found: dict[float, list[nn.Parameter]] = {}
    for key, parameter in own.items():
        found.setdefault(factors.get(key, 1.0), []).append(parameter)
    return [(parameters, factor) for factor, parameters in found.items()]


def _check_group(parameters: list[Any], factor: float, free: set[int], name: str) -> None:
    if not 0 <= factor < float("inf"):
        raise UserError(f"{name}: lr_multiplier must be 0 or more, not {factor}")
    if any(id(p) not in free for p in parameters):
        raise UserError(
            f"{name}: parameter_groups may only have trained parameters of the loss, each once"
        )
