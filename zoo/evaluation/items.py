"""Items for all exact measures: checked, scaled to length 1, sorted by class."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.errors import UserError

Array: TypeAlias = "Tensor | np.ndarray[Any, Any]"

TIE = 1e-12
"""Cosines that differ by less count as equal: far above float64 rounding, far below float32's."""

# Tiles of the similarity matrix are side x side. On a CPU, a tile should fit in a core's share of
# the cache; its rows have an odd number of cache lines, so that they do not evict each other.
TILE_SIDE = {"cpu": 752, "cuda": 4096}
_NOT_INTEGERS = (torch.bool, torch.complex32, torch.complex64, torch.complex128)


class Items(NamedTuple):
    """Queries or gallery, sorted by class."""

    exact: Tensor  # (n, d) float64, of length 1 or 0
    fast: Tensor  # (n, d) the same, rounded to float32
    classes: Tensor  # (n,) int64, ascending


class Shape(NamedTuple):
    """A number of consecutive classes that have the same numbers of items on both sides."""

    classes: int
    queries: int
    gallery: int


def arrange(labels: Tensor, gallery_labels: Tensor) -> tuple[Tensor, Tensor, list[Shape]]:
    """Number the classes by shape; return the class numbers of both sides' items, and the shapes.

    Labels may be of any integer type, which may differ between the sides.
    """
    values, ids = torch.unique(torch.cat(_as_int64(labels, gallery_labels)), return_inverse=True)
    sides = ids.split([len(labels), len(gallery_labels)])
    sizes = torch.stack([torch.bincount(side, minlength=len(values)) for side in sides], dim=1)
    shapes, kind, many = torch.unique(sizes, dim=0, return_inverse=True, return_counts=True)
    numbers = kind * len(values) + torch.arange(len(values), device=labels.device)
    runs = [Shape(n, *size) for n, size in zip(many.tolist(), shapes.tolist(), strict=True)]
    return numbers[sides[0]], numbers[sides[1]], runs


def by_class(vectors: Tensor, classes: Tensor) -> tuple[Items, Tensor]:
    """Return the items sorted by class, and the original position of each."""
    classes, order = classes.sort(stable=True)
    exact = vectors[order].double()
    # Divided by the largest number first, if squares can overflow or underflow.
    for norm in (torch.inf, 2) if vectors.dtype == torch.float64 else (2,):
        length = torch.linalg.vector_norm(exact, ord=norm, dim=1, keepdim=True)
        exact /= length.masked_fill_(length == 0, 1)
    return Items(exact, exact.float(), classes), order


def _as_int64(labels: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels of two sides as int64 numbers that are equal exactly where the labels are.

    No type holds both the negative numbers of int64 and the upper half of uint64: float64, NumPy's
    common type of both, confuses neighbours, and int64 wraps around.
    """
    if (labels.dtype == torch.uint64) == (others.dtype == torch.uint64):
        return labels.long(), others.long()
    sides = [torch.stack([x.long(), _beyond_int64(x)]) for x in (labels, others)]
    _, ids = torch.unique(torch.cat(sides, 1), dim=1, return_inverse=True)
    mine, theirs = ids.split([len(labels), len(others)])
    return mine, theirs


def _beyond_int64(labels: Tensor) -> Tensor:
    """Return 1 for labels that are negative as int64 only because of overflow, 0 for others."""
    return ((labels.long() < 0) & (labels.dtype == torch.uint64)).long()


def blocks(length: int, step: int, of: slice | None = None) -> list[slice]:
    """Split ``range(length)``, or a slice of it, into blocks of ``step`` and one with the rest."""
    first, end = (0, length) if of is None else (of.start, of.stop)
    step = max(1, step)
    return [slice(start, min(start + step, end)) for start in range(first, end, step)]


def check_items(
    vectors: Array, labels: Array, name: str = "embeddings", like: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return vectors (n, d) as floats of 32 or 64 bits and labels (n,), on one device.

    Labels keep their integer type, see :func:`arrange`. Vectors are moved to the device of ``like``
    and must have its number of dimensions.
    """
    label_name = "labels" if like is None else f"{name}_labels"
    vectors, labels = _tensor(vectors, name), _tensor(labels, label_name)
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise UserError(f"{name} must be floats of shape (items, dimensions); {_got(vectors)}")
    _check_labels(labels, label_name)
    if len(vectors) != len(labels):
        many = name if like is None else f"items of {name}"
        raise UserError(f"{len(vectors)} {many} do not match {len(labels)} {label_name}")
    if vectors.numel() == 0:
        raise UserError(f"{_are(name)} empty: {_got(vectors)}")
    if like is not None and vectors.shape[1] != like.shape[1]:
        raise UserError(
            f"{name} has {vectors.shape[1]} dimensions, but embeddings have {like.shape[1]}"
        )
    device = vectors.device if like is None else like.device
    if device.type not in TILE_SIDE:  # other devices have no float64
        device = torch.device("cpu")
    vectors = vectors.to(device)
    if vectors.dtype.itemsize < 4:
        vectors = vectors.float()
    _check_finite(vectors, name)
    return vectors, labels.to(device)


def check_labels(labels: Array, name: str = "labels") -> NDArray[Any]:
    """Return labels (n,) as a NumPy array; raise a UserError if they are not integers."""
    found = _tensor(labels, name)
    _check_labels(found, name)
    return found.cpu().numpy()


def _check_labels(labels: Tensor, name: str) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype in _NOT_INTEGERS:
        raise UserError(f"{name} must be integers of shape (items,); {_got(labels)}")


def _tensor(given: Array, name: str) -> Tensor:
    if isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray):
        try:
            # Native byte order, contiguous and writable: PyTorch then gives no warning.
            given = torch.from_numpy(np.require(given, given.dtype.newbyteorder("="), ("C", "W")))
        except TypeError as error:
            raise UserError(f"{name} must not be of the NumPy type {given.dtype}") from error
    if kind := _unusual(given):
        raise UserError(f"{name} must be a dense PyTorch tensor or NumPy array; got a {kind}")
    assert isinstance(given, Tensor)
    return given.detach()


def _unusual(given: object) -> str | None:
    """Return what a value is that is not a plain, dense tensor with its numbers; else None."""
    kind = type(given).__name__
    if not isinstance(given, Tensor):
        return kind
    if given.layout != torch.strided:
        return f"{kind} of layout {str(given.layout).removeprefix('torch.')}"
    if given.is_meta:
        return f"{kind} without data (device meta)"
    if given.is_nested:
        return f"nested {kind}"
    plain = type(given).__torch_dispatch__ is Tensor.__torch_dispatch__
    return None if plain else kind  # such as a MaskedTensor


def _are(name: str) -> str:
    return f"{name} {'is' if name == 'gallery' else 'are'}"


def _got(tensor: Tensor) -> str:
    return f"got {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _check_finite(vectors: Tensor, name: str) -> None:
    # The maximum of a row is NaN or infinite if any number is: one pass, without a large mask.
    largest = torch.linalg.vector_norm(vectors, ord=torch.inf, dim=1)
    bad = (~largest.isfinite()).nonzero().flatten().tolist()
    if bad:
        first = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise UserError(
            f"{_are(name)} NaN or infinite in {len(bad)} of {len(vectors)} items, by index: {first}"
        )
