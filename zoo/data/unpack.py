"""Untrusted archives: unpacked within their folder and limits, completely or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias, cast

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.support.files import alone, open_regular, writing

_CHUNK = 1 << 20
_DEEPEST = 64  # nested folders; shutil.rmtree recurses, and paths have a maximal length
_LONGEST = 1024  # characters of a path within the archive
_OVERHEAD = 1 << 14  # bytes that a tar file may use for the headers of a member, on average
_NEITHER = "is neither a plain file nor a folder"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}  # by a file's first bytes
_Open: TypeAlias = "Callable[[], IO[bytes] | None] | None"  # opens a member; None for a folder


def unpack(
    archive: Path,
    into: Path,
    *,
    most_bytes: int,
    most_files: int,
    inner: str | None = None,
    reporter: Reporter | None = None,
) -> Path:
    """Unpack a tar file (plain, gzip, bzip2, xz) or a zip file as ``into``, unless that exists.

    It grows in the hidden folder ``.<name>.half`` beside ``into`` and is renamed at the end, so
    an ``into`` that exists is complete. The next process removes what a killed one left; a second
    process waits for the first. Owners, modes and times are ignored: files get 0644 and folders
    0755, less the umask.

    Args:
        archive: the file; its kind is recognised by its content.
        into: the folder to make.
        most_bytes: limit for all its files together.
        most_files: limit for their number, including folders.
        inner: the folder of the archive that becomes ``into``; everything else is dropped.
        reporter: shows a bar if it writes to a terminal.

    Raises:
        UserError: ``into`` exists, but is empty or not a folder; the archive is damaged or exceeds
            a limit; a member or ``inner`` would leave the folder; a member is neither file nor
            folder; it cannot be written. Nothing is left behind.
    """
    reporter = reporter or Reporter()
    kept = _inner_parts(inner)
    if os.path.lexists(into):
        return _existing(into)
    with alone(into, reporter), writing(into):
        if os.path.lexists(into):
            return _existing(into)
        half = into.with_name(f".{into.name}.half")
        try:
            if half.exists():
                shutil.rmtree(half)
            half.mkdir(mode=0o755)
            _extract(archive, _Tree(half, most_bytes, most_files), reporter)
            if not half.joinpath(*kept).is_dir():
                raise UserError(f"{archive}: holds no folder {inner!r}")
            half.joinpath(*kept).replace(into)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return into


def _inner_parts(inner: str | None) -> tuple[str, ...]:
    """Split the name of the folder to keep; raise a UserError if it would leave the archive."""
    if inner is None:
        return ()
    try:
        return _parts(inner)
    except _RefusedError as error:
        raise UserError(f"inner must be a folder of the archive: {error}") from error


def _existing(into: Path) -> Path:
    try:
        if any(into.iterdir()):
            return into
    except OSError as error:
        raise UserError(f"{into}: is in the way ({error.strerror})") from error
    raise UserError(f"{into}: is empty; delete it to unpack the archive there")


class _RefusedError(UserError):
    """The archive is damaged, or of a kind that is not unpacked."""


def _refusal(name: str, why: str) -> _RefusedError:
    return _RefusedError(f"member {name[:200]!r} {why}")


def _extract(archive: Path, tree: _Tree, reporter: Reporter) -> None:
    """Write the members of the archive into the tree; raise a UserError if it is refused."""
    try:
        file = open_regular(archive)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{str(archive)!r}: cannot be read ({reason})") from error
    with file, _bar(reporter) as bar:
        size = os.fstat(file.fileno()).st_size
        task = bar.add_task(f"unpacking {archive.name}", total=size, files="")
        try:
            for member in _members(bar.wrap_file(file, task_id=task), tree.most_stream):
                tree.add(*member)
                bar.update(task, files=f"{tree.files:,} files")
        except _RefusedError as error:
            raise UserError(f"{archive}: {error}; nothing was unpacked") from error
    if not tree.files:
        raise UserError(f"{archive}: holds no files")


def _bar(reporter: Reporter) -> AbstractContextManager[Progress]:
    title = TextColumn("{task.description}", markup=False)
    files = TextColumn("{task.fields[files]}")
    return reporter.bar(title, BarColumn(), files, TimeRemainingColumn(compact=True))


@contextmanager
def _reading(name: str = "") -> Iterator[None]:
    """Raise a _RefusedError, which says that the archive cannot be read, for any exception."""
    try:
        yield
    except _RefusedError:
        raise
    except Exception as error:  # the libraries raise almost anything on a damaged archive
        member = f"member {name[:200]!r}: " if name else ""
        reason = f"{type(error).__name__}: {error}"[:300]
        raise _RefusedError(
            f"{member}damaged, or not an archive that can be read ({reason}); download it again"
        ) from error


def _members(file: BinaryIO, most: int) -> Iterator[tuple[str, int, _Open]]:
    """Yield name and size of each file and folder; read each before asking for the next."""
    with _reading():
        start = file.read(6)
        file.seek(0)
        if start.startswith(b"PK"):
            yield from _zip_members(file)
            return
        module = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), "")
        # some builds of Python lack one of them
        with import_module(module).open(file) if module else nullcontext(file) as stream:
            yield from _tar_members(_Stream(stream, most))


class _Stream:
    """The bytes of a tar file: forwards only, in small pieces, and not too many.

    tarfile reads a header in one piece, whatever size it claims, and goes back if a header says so:
    a file could fill the memory, or never end.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.file, self.most, self.tell = file, most, file.tell
        self.last = b""

    def seek(self, position: int) -> int:
        if position < self.tell():
            raise tarfile.ReadError("points backwards")
        return self.file.seek(position)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _CHUNK:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self.file.read(size)
        if self.tell() > self.most:
            raise _RefusedError(f"unpacks to more than {self.most:,} bytes")
        return self.last


def _tar_members(stream: _Stream) -> Iterator[tuple[str, int, _Open]]:
    # names as UTF-8 in every locale; invalid bytes become surrogates, which are refused
    with tarfile.open(
        fileobj=cast(Any, stream), mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for info in tar:
            if info.size < 0:
                raise tarfile.ReadError("negative size")
            if not (info.isreg() or info.isdir()) or info.issparse():
                raise _refusal(info.name, _NEITHER)
            _parts(info.name)  # first, as tarfile makes an absolute path relative
            if hasattr(tarfile, "data_filter"):  # not in the first patch releases of 3.10 and 3.11
                tarfile.data_filter(info, "/nowhere")
            yield info.name, info.size, None if info.isdir() else partial(tar.extractfile, info)
    # tarfile takes a damaged or missing header for the end, which is a block of zeros
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("ends without its end mark")
    while stream.read(_CHUNK):  # up to the checksum of the compressed stream
        pass


def _zip_members(file: BinaryIO) -> Iterator[tuple[str, int, _Open]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.orig_filename  # before zipfile cuts it at a null byte and turns backslashes
            if info.flag_bits & 0x41:
                raise _refusal(name, "is encrypted")
            # zipfile would unpack the other methods in pieces of any size
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _refusal(name, f"is compressed by method {info.compress_type}, not deflate")
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refusal(name, _NEITHER)
            yield name, info.file_size, None if info.is_dir() else partial(archive.open, info)


def _parts(name: str) -> tuple[str, ...]:
    """Split a member's name; raise a _RefusedError if it would leave the folder on some system."""
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise _refusal(name, "has a name with control characters, or not in UTF-8")
    if name.startswith("/"):
        raise _refusal(name, "has an absolute path")
    if "\\" in name or ":" in name:
        raise _refusal(name, "has a backslash or a colon in its name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if any(part.strip(". ") == "" for part in parts):  # Windows drops trailing dots and spaces
        raise _refusal(name, "leads out of the folder, or has a name of dots and spaces")
    if len(parts) > _DEEPEST or len(name) > _LONGEST:
        raise _refusal(name, f"is over {_DEEPEST} folders deep or {_LONGEST} characters long")
    if any(len(part.encode()) > 255 for part in parts):
        raise _refusal(name, "has a name longer than disks allow, 255 bytes")
    return parts


class _Tree:
    """The folder that is being filled, and its content."""

    def __init__(self, root: Path, most_bytes: int, most_files: int) -> None:
        self.root, self.most_bytes, self.most_files = root, most_bytes, most_files
        self.most_stream = most_bytes + _CHUNK + _OVERHEAD * most_files
        self.bytes = self.members = self.files = 0
        self.folders: set[tuple[str, ...]] = set()

    def add(self, name: str, size: int, opening: _Open) -> None:
        """Write a member; raise a _RefusedError if it is over a limit, clashes or is damaged."""
        parts = _parts(name)
        outer = parts[:-1] if opening else parts
        new = [outer[:i] for i in range(1, len(outer) + 1) if outer[:i] not in self.folders]
        self.members += max(1, len(new) + bool(opening))
        self.bytes += size  # as the archive claims; the libraries read no more than that
        if self.members > self.most_files:
            raise _refusal(name, f"is more than the {self.most_files:,} files allowed")
        if self.bytes > self.most_bytes:
            raise _refusal(name, f"goes beyond the {self.most_bytes:,} bytes allowed for all")
        try:
            for folder in new:
                self.root.joinpath(*folder).mkdir(mode=0o755)
            if opening:
                with self._create(parts) as file:
                    for data in _read(name, opening):
                        file.write(data)
        except FileExistsError as error:
            raise _refusal(name, "clashes with another member on this disk") from error
        self.folders.update(new)
        self.files += bool(opening)

    def _create(self, parts: tuple[str, ...]) -> BinaryIO:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o644)

        # its folders were made above, so no link is followed
        return cast(BinaryIO, open(self.root.joinpath(*parts), "xb", opener=opener))


def _read(name: str, opening: Callable[[], IO[bytes] | None]) -> Iterator[bytes]:
    with _reading(name), cast("IO[bytes]", opening()) as file:
        while data := file.read(_CHUNK):
            yield data
