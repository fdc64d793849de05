"""Files that are written whole or not at all, and by one process at a time."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from zoo._words import printable
from zoo.errors import UserError
from zoo.progress import Reporter


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


@contextmanager
def alone(path: Path, reporter: Reporter) -> Iterator[None]:
    """Make the folder of ``path``, and keep every other process from making ``path`` meanwhile.

    Waits for a process that is at it. The empty lock file ``.<name>.lock`` is left behind: to
    remove it would let two processes in.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            reporter.say(f"{path}: another process is at it; waiting for that")
            lock.acquire()
    except (OSError, ValueError, NotImplementedError) as error:  # a null byte; no locks there
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        lock.release()


def check_folder(path: Path) -> None:
    """Refuse, before hours of work, a file that could not be written.

    Raises:
        UserError: its folder is not there or cannot be written, or it is a folder itself.
    """
    shown = printable(str(path))
    try:
        folder = path.absolute().parent
        if path.is_dir():
            raise UserError(f"{shown}: a folder is there; give another name, or move it away")
        if not folder.is_dir():
            raise UserError(f"{shown}: there is no folder {printable(str(folder))}; make it first")
        if _is_run(folder):
            raise UserError(f"{shown}: that is the folder of a run, whose files are its own")
        trial = folder / f".{uuid.uuid4().hex}.tmp"
        trial.touch()
        trial.unlink()
    except UserError:
        raise
    except (OSError, ValueError) as error:  # a null byte is the latter
        raise cannot_write(path, error) from error


def _is_run(folder: Path) -> bool:
    kept = ("result.json", "checkpoint.pt", "metrics.jsonl")
    return (folder / "config.yaml").is_file() and any((folder / n).is_file() for n in kept)


def cannot_write(path: Path, error: Exception) -> UserError:
    """Return in one message why the disk did not take a file or folder."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: no room left on the disk; make room and run again")
    return UserError(f"{str(path)!r}: cannot be written ({getattr(error, 'strerror', 0) or error})")
