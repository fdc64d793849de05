"""Finds and reads the hooks that a component may have, see :class:`zoo.base.LossHooks`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.registry.calling import takes_image_ids

ASKED = {
    "image_ids": "which images are in the batch",
    "num_images": "how many training images there are",
    "level_sizes": "the sizes of the parts of an embedding",
    "space": "a space",
    "begin_epoch": "a look at the data between epochs",
}
"""What a loss may be given besides embeddings and labels, in words."""
_GROUPS = "begin_epoch returns None, or a whole number for each training image"


def asked(target: Any, arguments: Collection[str]) -> list[str]:
    """Return what a class of losses is given besides embeddings and labels, by its own names.

    Args:
        target: the class.
        arguments: of its constructor.
    """
    found = [name for name in ("num_images", "level_sizes", "space") if name in arguments]
    found += ["begin_epoch"] * hasattr(target, "begin_epoch")
    return [*["image_ids"] * takes_image_ids(target), *found]


def of_epochs(*components: object) -> Iterator[Any]:
    """Yield the modules, the components themselves or within them, that have a ``begin_epoch``."""
    for component in components:
        modules = component.modules() if isinstance(component, nn.Module) else [component]
        yield from (module for module in modules if hasattr(module, "begin_epoch"))


def rows_of(embeddings: Tensor, ids: Sequence[int] | None = None) -> Tensor:
    """Return the embeddings of some images, or of all, out of those of all."""
    return embeddings if ids is None else embeddings[checked_ids(ids, len(embeddings))]


def checked_ids(ids: Any, images: int) -> list[int]:
    """Return the ids of training images that a hook asks the embeddings of.

    Raises:
        UserError: they are no whole numbers, or there is no such image.
    """
    given = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    if given.size == 0:
        return []
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise UserError(f"embed takes ids (k,) of whole numbers, not {given.dtype} {given.shape}")
    if given.min() < 0 or given.max() >= images:
        raise UserError(
            f"embed was asked for image {given.min() if given.min() < 0 else given.max()}; there "
            f"are {images:,}, from 0"
        )
    found: list[int] = given.tolist()
    return found


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
            given = [_group(group, name) for group in declared()]
        for parameters, factor in given:
            _check_group(parameters, factor, own.keys() - factors.keys(), name)
            factors |= {id(p): factor for p in parameters}
    found: dict[float, list[nn.Parameter]] = {}
    for key, parameter in own.items():
        found.setdefault(factors.get(key, 1.0), []).append(parameter)
    return [(parameters, factor) for factor, parameters in found.items()]


def _group(given: Any, name: str) -> tuple[list[nn.Parameter], float]:
    if not isinstance(given, Mapping) or not given.keys() >= {"params", "lr_multiplier"}:
        raise UserError(
            f'{name}: parameter_groups gives {{"params": [...], "lr_multiplier": 0.1}}, not '
            f"{given!r:.60}"
        )
    factor = given["lr_multiplier"]
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise UserError(f"{name}: lr_multiplier must be a number, not {factor!r:.60}")
    return list(given["params"]), float(factor)


def _check_group(parameters: list[Any], factor: float, free: set[int], name: str) -> None:
    if not 0 <= factor < float("inf"):
        raise UserError(f"{name}: lr_multiplier must be 0 or more, not {factor}")
    if any(id(p) not in free for p in parameters) or len({*map(id, parameters)}) < len(parameters):
        raise UserError(
            f"{name}: parameter_groups may only have trained parameters of the loss, each once"
        )
