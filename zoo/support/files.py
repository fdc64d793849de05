"""Reading regular files only; writing files whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import stat
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from zoo.errors import MachineError, UserError
from zoo.support.text import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zoo.progress import Reporter

MOST_TEXT = 64 << 20
"""Most bytes of a text that is read whole, such as JSON: more than any run or list here has."""


_MAKE_ROOM = "make room and run again"
_WRONG_NAMES = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
_WRONG_NAMES |= {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
"""Errors that mean the user wrote a wrong path."""

if sys.platform != "win32":
    import fcntl


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, or a link to one; raise an OSError if that is impossible.

    FIFOs, which would wait for a writer, and devices, which may never end, are refused.
    """
    # O_NONBLOCK: the file could become a FIFO between the check of the path and the opening.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    check_regular(path)
    number = os.open(path, flags)
    try:
        _check_mode(os.fstat(number).st_mode, path)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise an OSError if there is no regular file at a path, before a library opens it."""
    _check_mode(Path(path).stat().st_mode, path)


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], at_most: int) -> bytes:
    """Return a regular file's bytes; raise an OSError if it is unreadable or over ``at_most``."""
    with open_regular(path) as file:
        data = file.read(at_most + 1)
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"is larger than {at_most:,} bytes", os.fspath(path))
    return data


def read_text(
    path: str | os.PathLike[str],
    at_most: int = MOST_TEXT,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> str:
    """Return the text of a regular file of at most ``at_most`` bytes, with lines ending in ``\\n``.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger.
        UnicodeDecodeError: it is not text, and ``errors`` is strict.
    """
    data = io.BytesIO(read_bytes(path, at_most))
    return io.TextIOWrapper(data, encoding=encoding, errors=errors).read()


def read_json(path: str | os.PathLike[str], at_most: int = MOST_TEXT) -> Any:
    """Return the data in a JSON file of at most ``at_most`` bytes.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger.
        ValueError, RecursionError: it is not JSON, or nested too deeply.
    """
    return json.loads(read_text(path, at_most))


def read_array(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return the array in an ``.npy`` file; raise any exception if it is damaged or too short."""
    import numpy as np

    check_regular(path)
    found = np.load(path, mmap_mode="r", allow_pickle=False)  # a map cannot be longer than its file
    if not isinstance(found, np.ndarray):
        raise ValueError("not an .npy file")
    return np.array(found)


def check_stored(path: str | os.PathLike[str]) -> None:
    """Refuse a zip file that unpacks to more than its own size, before anything in it is read.

    torch.save and np.savez store their parts uncompressed. Parts that are compressed or overlap
    could take any amount of memory. Raises an OSError, a ValueError or a zipfile.BadZipFile.
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        for part in parts:
            if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
                raise ValueError(f"its part {part.filename[:60]!r} is compressed")
        if sum(part.file_size for part in parts) > os.fstat(file.fileno()).st_size:
            raise ValueError("its parts are larger than the file")


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal."""
    whole = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file beside ``path``, flush it to the disk and rename it to ``path``.

    However the process ends, the old or the new file is there, also if other processes write it at
    the same time. A temporary file left by SIGKILL is removed by :func:`remove_left_over`. Raises
    an OSError if it cannot be written; nothing is then left behind.
    """
    temporary, file = _open_temporary(path)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":  # where an open file cannot be renamed
                file.close()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _open_temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Open a hidden file beside a path, locked for as long as it is open."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        file = temporary.open("xb")
        with suppress(OSError):  # a file system without locks: nothing is cleaned up there
            _lock(file, wait=True)
        if temporary.exists():  # it was not removed before it was locked
            return temporary, file
        file.close()


def remove_left_over(path: Path) -> None:
    """Remove the temporary files of killed writes of ``path``; those in use are locked and stay."""
    left = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{32}\.tmp")
    with suppress(OSError), os.scandir(path.absolute().parent) as entries:
        for entry in [entry for entry in entries if left.fullmatch(entry.name)]:
            with suppress(OSError), open_regular(entry.path) as file:
                _lock(file, wait=False)
                if os.name == "nt":  # where an open file cannot be removed
                    file.close()
                Path(entry.path).unlink()


def _lock(file: BinaryIO, wait: bool) -> None:
    """Lock a file until it is closed; without ``wait``, raise OSError if it is already locked."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time replace files of a folder that belong together.

    Meant for moments: it leaves no lock file and does not report the wait. Windows and some network
    disks cannot lock folders; there it has no effect. Raises an OSError if there is no such folder.
    """
    if sys.platform == "win32":
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


@contextmanager
def alone(path: Path, reporter: Reporter, way_out: str = "") -> Iterator[None]:
    """Create the folder of ``path``, and let no other process write ``path`` in the meantime.

    Waits for a process that is writing it. The empty lock file ``.<name>.lock`` stays: removing it
    would let two processes in. Raises a UserError if the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    with writing(path, way_out):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            reporter.say(f"{path}: waiting for another process that is writing it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check_folder(path: Path) -> None:
    """Check before hours of work that a file can be written, and remove left-over temporary files.

    Raises a UserError if its folder does not exist or cannot be written, or it is a folder itself.
    """
    shown = printable(str(path))
    with writing(path):
        folder = path.absolute().parent
        if path.is_dir():
            raise UserError(f"{shown} is a folder; give another name, or move it away")
        if not folder.is_dir():
            raise UserError(f"{shown}: there is no folder {printable(str(folder))}; make it first")
        if is_run(folder):
            raise UserError(f"{shown}: that is the folder of a run, for its own files only")
        remove_left_over(path)
        trial, file = _open_temporary(path)  # its name is as long as that of the real file
        file.close()
        trial.unlink(missing_ok=True)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, even of one that has just started."""
    kept = ("result.json", "checkpoint.pt", "metrics.jsonl", ".lock")
    # Path.is_file raises for a name that is too long or has a null byte.
    is_file = [os.path.isfile(folder / name) for name in ("config.yaml", *kept)]  # noqa: PTH113
    return is_file[0] and any(is_file[1:])


def is_wrong_name(error: Exception) -> bool:
    """Return whether an error means that no machine could have a file of that name."""
    return getattr(error, "errno", errno.EINVAL) in _WRONG_NAMES  # a null byte is a ValueError


@contextmanager
def writing(path: Path, way_out: str = "", full: str = _MAKE_ROOM) -> Iterator[None]:
    """Report in one message why a file or folder cannot be written, and what to do.

    Args:
        path: of the file or folder.
        way_out: what to do.
        full: what to do if no more can be written there, unless there is a ``way_out``.

    Raises:
        UserError: in place of the system's error; a :class:`zoo.errors.MachineError` unless no
            machine could write a file of that name.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # a null byte; no locks there
        raise cannot_write(path, error, way_out, full) from error


def cannot_write(
    path: Path, error: Exception, way_out: str = "", full: str = _MAKE_ROOM
) -> UserError:
    """Return the message of :func:`writing`."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # EFBIG: a limit such as ulimit -f
        way_out = way_out or full
    if number in (errno.ENOSPC, errno.EDQUOT):
        return MachineError(f"{printable(str(path))}: no room left on the disk; {way_out}")
    kind = UserError if is_wrong_name(error) else MachineError
    reason = getattr(error, "strerror", None) or error
    return kind("; ".join(filter(None, (f"{str(path)!r}: cannot be written ({reason})", way_out))))
