"""A checkpoint as bytes, and read from a file that may be damaged or something else."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

from zoo.errors import UserError, out_of_memory
from zoo.runs.metrics import is_count
from zoo.support.files import check_stored


def encoded(state: dict[str, Any]) -> bytes:
    """Return a checkpoint as bytes; they load with ``weights_only=True``."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read(path: Path, mmap: bool = False) -> dict[str, Any] | None:
    """Return a checkpoint, on the CPU, whichever run it is of; None if there is no file.

    With ``mmap``, only the parts that are used are read, without a check for damage. Raises a
    UserError if the file is not a checkpoint, or damaged.
    """
    import torch

    if not path.is_file():
        return None
    try:
        check_stored(path)
        if not mmap:
            _check_sums(path)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        if not is_count(state["iteration"]):
            raise ValueError("invalid iteration")
    except Exception as error:
        if out_of_memory(error):
            raise
        raise UserError(
            f"{path}: not a checkpoint that can be read ({type(error).__name__}); "
            "start again with --restart"
        ) from error
    return state


def _check_sums(path: Path) -> None:
    """Raise a ValueError if a part differs from its checksum, which torch does not compare."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} is damaged")
