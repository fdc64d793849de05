"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, flush it to the disk and rename it into it.

    Whatever ends the process leaves the old file or the new one; others may write it meanwhile.

    Raises:
        OSError: if that is impossible; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
