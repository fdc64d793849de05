"""Embeddings that come from elsewhere, read from a file: .npz, .npy or .parquet."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.support.files import check_regular, check_stored, read_array, read_text
from zoo.support.text import counted, printable

_COLUMNS = ("embedding", "label")
_SIDES = ("is_query", "is_gallery")


class GivenItems(NamedTuple):
    """Embeddings (n, d) and labels (n,); which of them are queries and gallery, if it is said."""

    embeddings: NDArray[Any]
    labels: NDArray[Any]
    is_query: NDArray[np.bool_] | None = None
    is_gallery: NDArray[np.bool_] | None = None


class Sides(NamedTuple):
    """Queries and gallery; without a gallery, each query retrieves from the other queries."""

    embeddings: NDArray[Any]
    labels: NDArray[np.int64]
    gallery: NDArray[Any] | None = None
    gallery_labels: NDArray[np.int64] | None = None


def read(path: Path, labels: Path | None = None) -> GivenItems:
    """Read the embeddings of a file, and their labels from it or from another.

    Args:
        path: ``.npz`` with ``embeddings`` and ``labels``, and perhaps ``is_query`` and
            ``is_gallery``; ``.npy`` with embeddings; or ``.parquet`` with columns ``embedding`` and
            ``label``, and perhaps ``is_query`` and ``is_gallery``.
        labels: ``.npy``, or a text file with a label in each line.

    Raises:
        UserError: a file cannot be read, lacks something, or its parts do not fit together.
    """
    kinds = {".npz": _read_npz, ".npy": _read_npy, ".parquet": _read_parquet}
    if path.suffix not in kinds:
        raise UserError(printable(f"{path}: must end in .npz, .npy or .parquet"))
    found = kinds[path.suffix](path)
    if labels is not None:
        found["labels"] = _read_labels(labels)
    if "labels" not in found:
        raise UserError(printable(f"{path}: has no labels; name a file that has them: --labels"))
    items = GivenItems(**found)
    _check(path, items)
    return items


def sides(items: GivenItems, gallery: GivenItems | None = None) -> Sides:
    """Return queries and gallery, with labels as numbers.

    Raises:
        UserError: a file of queries says which of its items are the gallery, and another is given.
    """
    if gallery is None:
        if items.is_query is None and items.is_gallery is None:
            return Sides(items.embeddings, _numbered(items.labels)[0])
        everything = np.ones(len(items.labels), dtype=bool)
        asked = everything if items.is_query is None else items.is_query
        searched = everything if items.is_gallery is None else items.is_gallery
        if (asked & searched).any():
            raise UserError(
                f"{counted(int((asked & searched).sum()), 'item')} would be query and gallery at "
                "once, and find themselves; leave is_query and is_gallery out to search among all"
            )
        gallery = items._replace(
            embeddings=items.embeddings[searched], labels=items.labels[searched]
        )
        items = items._replace(embeddings=items.embeddings[asked], labels=items.labels[asked])
    elif items.is_gallery is not None or gallery.is_query is not None:
        raise UserError("the gallery is given twice: by is_query or is_gallery, and by --gallery")
    mine, theirs = _numbered(items.labels, gallery.labels)
    return Sides(items.embeddings, mine, gallery.embeddings, theirs)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        check_stored(path)
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in ("embeddings", "labels", *_SIDES) if name in file}
    except Exception as error:  # noqa: BLE001 - of a damaged file it raises about any kind
        hint = "; save it with np.savez" if "compressed" in str(error) else ""
        raise _unreadable(path, error, hint) from None
    if "embeddings" not in found:
        raise UserError(printable(f"{path}: has no array named embeddings"))
    return found


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        return {"embeddings": read_array(path)}
    except Exception as error:  # noqa: BLE001 - of a damaged file it raises about any kind
        raise _unreadable(path, error) from None


def _read_parquet(path: Path) -> dict[str, Any]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")  # type checkers may not find it
    except ImportError:
        raise UserError(
            printable(f"{path}: needs a package that is not installed; pip install pyarrow")
        ) from None
    try:
        check_regular(path)
        names = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[n for n in (*_COLUMNS, *_SIDES) if n in names])
        found = {name: table[name].to_pylist() for name in table.column_names}
    except Exception as error:  # noqa: BLE001 - of a damaged file it raises about any kind
        raise _unreadable(path, error) from None
    if "embedding" not in found:
        raise UserError(printable(f"{path}: has no column named embedding"))
    try:
        read = {"embeddings": np.array(found["embedding"], np.float64)}
    except (TypeError, ValueError):
        raise UserError(
            printable(f"{path}: its embeddings must be lists of numbers, all of one length")
        ) from None
    if "label" in found:
        read["labels"] = np.array(found["label"])
    return read | {name: np.array(found[name]) for name in _SIDES if name in found}


def _read_labels(path: Path) -> NDArray[Any]:
    try:
        if path.suffix == ".npy":
            return read_array(path)
        return np.array(read_text(path).splitlines())
    except Exception as error:  # noqa: BLE001 - of a damaged file it raises about any kind
        raise _unreadable(path, error) from None


def _check(path: Path, items: GivenItems) -> None:
    """Refuse parts of the wrong form or of different lengths."""
    shape = items.embeddings.shape
    if items.embeddings.ndim != 2 or items.embeddings.dtype.kind not in "fiu" or not min(shape):
        raise UserError(
            printable(
                f"{path}: embeddings are {items.embeddings.dtype} of shape {shape}; they must be "
                "numbers (n, d)"
            )
        )
    if items.labels.ndim != 1 or items.labels.dtype.kind not in "iuU":
        raise UserError(
            printable(
                f"{path}: labels are {items.labels.dtype} of shape {items.labels.shape}; they must "
                "be whole numbers or text (n,)"
            )
        )
    for name, part in zip(("labels", *_SIDES), items[1:], strict=True):
        if part is None:
            continue
        if name in _SIDES and (part.dtype != bool or part.ndim != 1):
            raise UserError(printable(f"{path}: {name} must be true or false for each item"))
        if len(part) != len(items.embeddings):
            raise UserError(
                printable(
                    f"{path}: {len(items.embeddings):,} embeddings and {len(part):,} {name}; there "
                    "must be one for each"
                )
            )
        if name in _SIDES and not part.any():
            raise UserError(printable(f"{path}: {name} is false for every item"))


def _numbered(*labels: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return labels of several sides, numbers or text, as numbers that are equal where they are."""
    kinds = {one.dtype.kind == "U" for one in labels}
    if len(kinds) > 1:
        raise UserError("labels of queries and gallery must both be text, or both be numbers")
    _, found = np.unique(np.concatenate(labels), return_inverse=True)
    return np.split(found.astype(np.int64), np.cumsum([len(one) for one in labels])[:-1])


def _unreadable(path: Path, error: Exception, hint: str = "") -> UserError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
    return UserError(printable(f"{path}: cannot be read: {reason}{hint}"))
