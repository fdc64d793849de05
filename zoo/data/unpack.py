"""Archives from strangers: unpacked inside their folder, within limits, whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.support.files import alone, cannot_write, open_regular

_CHUNK = 1 << 20
_DEEPEST = 64  # folders within each other; shutil.rmtree recurses, and paths have an end
_LONGEST = 1024  # characters of a path within the archive
_OVERHEAD = 1 << 14  # bytes that a tar file may spend on the headers of a member, in the mean


def unpack(
    archive: Path,
    into: Path,
    *,
    most_bytes: int,
    most_files: int,
    inner: str | None = None,
    reporter: Reporter | None = None,
) -> Path:
    """Unpack a tar file (plain, gzip, bzip2, xz) or a zip file as ``into``, unless that is there.

    It grows in the hidden folder ``.<name>.half`` beside ``into`` and is renamed at the end, so
    that ``into`` is whole if it is there. What a killed process left is cleared by the next one; a
    second process waits for the first. Only contents are taken, no owners, modes or times: files
    get 0644 and folders 0755, less the umask.

    Args:
        archive: the file; its content says of which kind it is.
        into: the folder to make.
        most_bytes: that all its files may have together, counted while they are written.
        most_files: that it may hold, folders among them.
        inner: the folder of the archive that becomes ``into``; all else in it is dropped.
        reporter: shows a bar if it writes to a terminal.

    Raises:
        UserError: ``into`` is there, but empty or no folder; the archive is damaged or exceeds a
            limit; a member would leave the folder or is neither file nor folder; the disk cannot
            take it. Nothing is left behind.
    """
    reporter = reporter or Reporter()
    if os.path.lexists(into):
        return _existing(into)
    with alone(into, reporter):
        if os.path.lexists(into):
            return _existing(into)
        half = into.with_name(f".{into.name}.half")
        try:
            if half.exists():
                shutil.rmtree(half)
            half.mkdir(mode=0o755)
            _extract(archive, _Tree(archive, half, most_bytes, most_files), reporter)
            _wanted(archive, half, inner).replace(into)
        except OSError as error:
            raise cannot_write(into, error) from error
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return into


def _wanted(archive: Path, half: Path, inner: str | None) -> Path:
    if inner is None:
        return half
    if not (half / inner).is_dir():
        raise UserError(f"{archive}: holds no folder {inner!r}")
    return half / inner


def _existing(into: Path) -> Path:
    try:
        if any(into.iterdir()):
            return into
    except OSError as error:
        raise UserError(f"{into}: is in the way ({error.strerror})") from error
    raise UserError(f"{into}: is empty; delete it to unpack the archive there")


class _Member(NamedTuple):
    """A file, with the means to read it, or a folder."""

    name: str
    open: Callable[[], IO[bytes]] | None


class _RefusedError(Exception):
    """A member is not one that we unpack."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"member {name[:200]!r} {why}")


def _extract(archive: Path, tree: _Tree, reporter: Reporter) -> None:
    """Write the members of the archive into the tree.

    Raises:
        UserError: the archive cannot be read, or is refused.
        OSError: the disk does not take it.
    """
    try:
        file = open_regular(archive)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{str(archive)!r}: cannot be read ({reason})") from error
    with file, _bar(reporter) as bar:
        size = os.fstat(file.fileno()).st_size
        task = bar.add_task(f"unpacking {archive.name}", total=size, files="")
        try:
            for member in _members(archive, file, tree.most_stream):
                for _ in tree.add(member):
                    bar.update(task, completed=file.tell(), files=f"{len(tree.files):,} files")
        except _RefusedError as error:
            raise UserError(f"{archive}: {error}; nothing was unpacked") from error
    if not tree.files:
        raise UserError(f"{archive}: holds no files")


def _bar(reporter: Reporter) -> AbstractContextManager[Progress]:
    return reporter.bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        TimeRemainingColumn(compact=True),
    )


@contextmanager
def _reading(archive: Path, name: str = "") -> Iterator[None]:
    """Say of whatever goes wrong that the archive is at fault.

    Raises:
        UserError: instead of any other exception.
    """
    try:
        yield
    except (UserError, _RefusedError):
        raise
    except Exception as error:  # of a damaged archive the libraries raise about any kind
        member = f", member {name[:200]!r}" if name else ""
        reason = f"{type(error).__name__}: {error}"[:300]
        raise UserError(
            f"{archive}{member}: damaged, or no archive that can be read ({reason}); get it again"
        ) from error


def _members(archive: Path, file: BinaryIO, most: int) -> Iterator[_Member]:
    """Yield the files and folders of an archive in order, each to be read before the next."""
    with _reading(archive):
        start = file.read(6)
        file.seek(0)
        if start.startswith(b"PK"):
            yield from _zip_members(file)
        else:
            with _unpacked(file, start) as stream:
                yield from _tar_members(_Stream(archive, stream, most))


def _unpacked(file: BinaryIO, start: bytes) -> Any:
    """Return the stream of a compressed file, as a context."""
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if start.startswith(b"BZh"):
        import bz2  # not in every build of Python

        return bz2.BZ2File(file)
    if start == b"\xfd7zXZ\x00":
        import lzma  # not in every build of Python

        return lzma.LZMAFile(file)
    return nullcontext(file)


class _Stream:
    """The bytes of a tar file: forwards only, in small pieces, and not too many.

    tarfile reads a header in one piece, however large it says it is, and goes back where a header
    sends it: room for a file that fills the memory, or never ends.
    """

    def __init__(self, archive: Path, file: IO[bytes], most: int) -> None:
        self.archive, self.file, self.most = archive, file, most
        self.position = 0
        self.last = b""

    def tell(self) -> int:
        return self.position

    def seek(self, position: int) -> int:
        if position < self.position:
            raise tarfile.ReadError("points backwards")
        while self.position < position and self.read(min(_CHUNK, position - self.position)):
            pass
        return self.position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _CHUNK:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self.file.read(size)
        self.position += len(self.last)
        if self.position > self.most:
            raise UserError(f"{self.archive}: unpacks to more than {self.most:,} bytes")
        return self.last


def _tar_members(stream: _Stream) -> Iterator[_Member]:
    # names as UTF-8 whatever the locale is; others become surrogates, which are refused
    with tarfile.open(
        fileobj=cast(Any, stream), mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for info in tar:
            _check_tar_info(info)
            yield _Member(info.name, None if info.isdir() else _opening(tar, info))
    # tarfile takes a damaged header, or none, for the end; that is a block of zeros
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("ends without its end mark")
    while stream.read(_CHUNK):  # to where the compressed stream has its own checksum
        pass


def _opening(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    return lambda: cast("IO[bytes]", tar.extractfile(info))


def _check_tar_info(info: tarfile.TarInfo) -> None:
    if info.issym() or info.islnk():
        raise _RefusedError(info.name, f"is a link, to {info.linkname[:200]!r}")
    if not (info.isdir() or info.isreg()):
        raise _RefusedError(info.name, "is a device, a pipe or of unknown type")
    if info.issparse():
        raise _RefusedError(info.name, "is a sparse file")
    if info.size < 0:
        raise _RefusedError(info.name, "has a negative size")
    _parts(info.name)
    data_filter = getattr(tarfile, "data_filter", None)  # in late patch releases of 3.10 and 3.11
    if data_filter is not None:
        try:
            data_filter(info, "/nowhere")
        except tarfile.TarError as error:
            raise _RefusedError(info.name, f"is refused by tarfile ({error})") from error


def _zip_members(file: BinaryIO) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            _check_zip_info(info)
            opening = _zip_opening(archive, info)
            yield _Member(info.filename, None if info.is_dir() else opening)


def _zip_opening(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


def _check_zip_info(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename  # before zipfile cuts it at a null byte and turns backslashes
    if info.flag_bits & 0x41:
        raise _RefusedError(name, "is encrypted")
    # zipfile would unpack the other methods in pieces of any size
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _RefusedError(name, f"is compressed by method {info.compress_type}, not deflate")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise _RefusedError(name, "is a link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _RefusedError(name, "is a device, a pipe or of unknown type")
    _parts(name)


def _parts(name: str) -> tuple[str, ...]:
    """Split the name of a member; it stays within the folder on every system.

    Raises:
        _RefusedError: it does not.
    """
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise _RefusedError(name, "has a name with control characters, or not in UTF-8")
    if name.startswith("/"):
        raise _RefusedError(name, "has an absolute path")
    if "\\" in name or ":" in name:
        raise _RefusedError(name, "has a backslash or a colon in its name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if any(part.strip(". ") == "" for part in parts):  # Windows drops dots and spaces at the end
        raise _RefusedError(name, "leads out of the folder, or has a name of dots and spaces")
    if len(parts) > _DEEPEST or len(name) > _LONGEST:
        raise _RefusedError(name, f"is over {_DEEPEST} folders deep or {_LONGEST} characters long")
    if any(len(part.encode()) > 255 for part in parts):
        raise _RefusedError(name, "has a name longer than disks allow, 255 bytes")
    return parts


class _Tree:
    """The folder that grows, and what is in it."""

    def __init__(self, archive: Path, root: Path, most_bytes: int, most_files: int) -> None:
        self.archive, self.root = archive, root
        self.most_bytes, self.most_files = most_bytes, most_files
        self.most_stream = most_bytes + _CHUNK + _OVERHEAD * most_files
        self.written = self.members = 0
        self.files: set[tuple[str, ...]] = set()
        self.folders: set[tuple[str, ...]] = {()}

    def add(self, member: _Member) -> Iterator[None]:
        """Write a member; yields after each piece.

        Raises:
            _RefusedError: it is beyond a limit or in the way of another.
            UserError: it cannot be read.
            OSError: it cannot be written.
        """
        parts = _parts(member.name)
        self.members += 1
        self._count(member.name)
        self._make_folders(member.name, parts if member.open is None else parts[:-1])
        if member.open is not None:
            self._claim(member.name, parts)
            with self._create(member.name, parts) as file:
                for data in self._read(member.name, member.open):
                    file.write(data)
                    yield
        yield

    def _count(self, name: str) -> None:
        made = len(self.files) + len(self.folders) - 1  # without the root
        if max(self.members, made) > self.most_files:
            raise _RefusedError(name, f"is more than the {self.most_files:,} files allowed")

    def _make_folders(self, name: str, parts: tuple[str, ...]) -> None:
        for i in range(1, len(parts) + 1):
            folder = parts[:i]
            if folder in self.folders:
                continue
            if folder in self.files:
                raise _RefusedError(name, "lies in what is a file already")
            self.folders.add(folder)
            self._count(name)
            with _unique(name):
                self.root.joinpath(*folder).mkdir(mode=0o755)

    def _claim(self, name: str, parts: tuple[str, ...]) -> None:
        if parts in self.files:
            raise _RefusedError(name, "comes twice")
        if parts in self.folders:
            raise _RefusedError(name, "is a folder already")
        self.files.add(parts)
        self._count(name)

    def _create(self, name: str, parts: tuple[str, ...]) -> BinaryIO:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o644)

        with _unique(name):
            # a path of its own, made above, so no link is followed
            return cast(BinaryIO, open(self.root.joinpath(*parts), "xb", opener=opener))

    def _read(self, name: str, opening: Callable[[], IO[bytes]]) -> Iterator[bytes]:
        with _reading(self.archive, name), opening() as file:
            while data := file.read(_CHUNK):
                self.written += len(data)
                if self.written > self.most_bytes:
                    allowed = f"{self.most_bytes:,} bytes allowed for all"
                    raise _RefusedError(name, f"goes beyond the {allowed}")
                yield data


@contextmanager
def _unique(name: str) -> Iterator[None]:
    """Refuse a name that is another one's on a disk that ignores case."""
    try:
        yield
    except FileExistsError as error:
        raise _RefusedError(name, "has the name of another on this disk") from error
