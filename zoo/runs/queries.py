"""Reading the rank and the class of each test query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import UserError
from zoo.support.files import read_array
from zoo.support.text import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def ranks(path: Path) -> NDArray[np.int32]:
    """Return r(q) of each query; raise a UserError if the file is missing or invalid."""
    try:
        found: NDArray[np.int32] = _integers(path, "int32")
        if (found < 1).any():
            raise ValueError("not ranks")
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: missing; it is in the folder of every finished run, beside result.json"
        ) from error
    except Exception as error:  # NumPy raises anything on a damaged file
        raise UserError(
            printable(f"{path}: not the ranks of a run; run again with --restart ({error})")
        ) from error
    return found


def labels(path: Path) -> NDArray[np.int64] | None:
    """Return the class of each query; None without a file; raise a UserError if it is invalid."""
    try:
        found: NDArray[np.int64] = _integers(path, "int64")
    except FileNotFoundError:
        return None
    except Exception as error:  # NumPy raises anything on a damaged file
        raise UserError(
            printable(f"{path}: not the labels of a run; you may delete it ({error})")
        ) from error
    return found


def _integers(path: Path, kind: str) -> Any:
    """Return an array of integers from a file; raise any exception if it is something else."""
    found = read_array(path)
    if found.dtype != kind or found.ndim != 1:
        raise ValueError(f"not a row of {kind}")
    return found
