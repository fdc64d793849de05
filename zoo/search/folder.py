"""The folder of an index: its files, written atomically and checked when they are read.

``meta.json`` names the other files and has their digests and a seal of itself. Replacing it is the
single step in which a new index takes the place of an old one. The files of a large index are too
long to be read at each opening: their sizes are checked then, and the digests on request.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.runs.identity import SEAL, seal
from zoo.search.compressed import Compressed
from zoo.search.neighbours import Kind, Neighbours
from zoo.search.parts import PARTS, Name, unfinished, vectors_in
from zoo.support.files import (
    alone,
    check_folder,
    check_regular,
    file_digest,
    open_regular,
    read_bytes,
    replace_file,
    writing,
)
from zoo.support.text import printable

META, _LOCK = "meta.json", ".meta.json.lock"
_OLD_INDEX, _OLD_NAMES = "index.faiss", "names.json"  # names from before there were digests
_MOST_META, _MOST_NAMES = 1 << 20, 1 << 32  # bytes
_SOON_READ = 1 << 30  # bytes that are read, to check them, whenever an index is opened
_ENDINGS = {"index": "faiss", "names": "json", "lists": "bin", "vectors": "f16"}
_ANOTHER = "it is not the file that meta.json describes"
_OURS = re.compile(
    r"(index|names|lists|vectors)-[0-9a-f]{16}\.(faiss|json|bin|f16)|index\.faiss|names\.json"
    r"|meta\.json|parts\.json|\.meta\.json\.lock"
    r"|\.(index|names|lists|meta|parts)[-.0-9a-z]*\.[0-9a-f]{32}\.tmp"
)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class OpenedFolder(_Part):
    """Where a folder was when the index was made: its path, and the path from the index."""

    path: Name
    relative: Name


class File(_Part):
    """A file of the index; an old index has neither bytes nor digest."""

    name: str = Field(
        pattern=r"^(index|names|lists|vectors)(-[0-9a-f]{16})?\.(faiss|json|bin|f16)$"
    )
    bytes: int | None = Field(ge=0)
    sha256: str | None = Field(description="in hexadecimal")


class SourceRun(OpenedFolder):
    """The run whose network made the embeddings."""

    name: Name
    digest: str


class About(_Part):
    """The facts of an index before it is written."""

    version: str = Field(description="of metric-zoo")
    kind: Kind
    metric: Literal["cosine", "distance"] = "cosine"
    embedding_size: int = Field(ge=1)
    space: dict[str, Any] | None = Field(
        None, description="whose distance is the metric: its name and arguments"
    )
    longest: float | None = Field(None, description="in a space, see zoo.evaluation.spaces")
    vector_size: int | None = Field(None, description="in a space, of the vectors in the index")
    count: int = Field(ge=1)
    images: OpenedFolder
    run: SourceRun
    network: str = Field(description="digest of the network, see Trained.network_digest")
    parameter: str = Field(description="trades time for recall: nprobe, efSearch or empty")
    value: Annotated[int, Field(ge=0)]
    recall_at_10: float | None = Field(
        ge=0, le=1, description="against exact search; null: the index is exact"
    )
    refine: int = Field(0, ge=0, description="candidates that are compared by their vectors")


class Meta(About):
    """The content of ``meta.json``, without its seal."""

    index: File
    names: File
    lists: File | None = Field(None, description="of kind ivfpq")
    vectors: File | None = Field(None, description="of kind ivfpq, if candidates are refined")

    def files(self) -> dict[str, File]:
        """Return the files of the index by what they hold."""
        every = {key: getattr(self, key) for key in ("index", "names", "lists", "vectors")}
        return {key: file for key, file in every.items() if file is not None}


def place_of(path: Path, seen_from: Path) -> dict[str, str]:
    """Return the fields of an :class:`OpenedFolder`."""
    return {"path": str(path), "relative": os.path.relpath(path, seen_from.resolve())}


def found_at(place: OpenedFolder, folder: Path) -> Path | None:
    """Return where a folder is now: at its old path, absolute or relative to the index."""
    for path in (Path(place.path), folder.resolve() / place.relative):
        try:
            if path.is_dir():
                return path.resolve()
        except (OSError, ValueError):  # the name is too long or has a null byte
            continue
    return None


def write(
    place: Path, names: list[str], neighbours: Neighbours, about: About, reporter: Reporter
) -> Meta:
    """Write an index and return its facts; an existing index stays valid until the last step.

    Waits for another process that writes it, and removes files of earlier builds. Raises a
    UserError if it cannot be written, or something else has come into the folder.
    """
    with replacing(place, reporter):
        return finish(place, names, about, {}, {"index": neighbours.write})


@contextmanager
def replacing(place: Path, reporter: Reporter) -> Iterator[None]:
    """Let no other process write an index meanwhile, and remove files of earlier builds.

    If the block fails, the parts that can be used again stay.
    """
    try:
        with alone(place / META, reporter):
            check_place(place)  # again: it may have changed meanwhile
            _remove_others(place, keep_parts=True)
            try:
                yield
            except BaseException:
                _remove_others(place, keep_parts=True)
                raise
            _remove_others(place)
    finally:
        _remove_empty(place)


def finish(
    place: Path,
    names: list[str],
    about: About,
    there: dict[str, Path],
    missing: dict[str, Callable[[BinaryIO], object]],
) -> Meta:
    """Write the files of an index, ``meta.json`` last, and return its facts.

    Args:
        place: the folder.
        names: of the images.
        about: what ``meta.json`` says of them.
        there: files that are written already.
        missing: how the others are written, apart from the names.
    """
    files = dict(there)
    with writing(place):
        for key, write_it in {**missing, "names": lambda file: file.write(_json(names))}.items():
            files[key] = file_of(place, key)
            replace_file(files[key], write_it)
        described = {key: _file(path).model_dump() for key, path in files.items()}
        meta = Meta.model_validate({**about.model_dump(), **described})
        content = _json(seal(meta.model_dump()))
        replace_file(place / META, lambda file: file.write(content))
    return meta


def _remove_empty(place: Path) -> None:
    """Remove the folder of an index that could not be written."""
    with suppress(OSError):
        if os.listdir(place) == [_LOCK]:  # noqa: PTH208
            (place / _LOCK).unlink()
            place.rmdir()


def file_of(place: Path, key: str) -> Path:
    """Return where a new file of an index is to be: no other build has one of this name."""
    return place / f"{key}-{uuid.uuid4().hex[:16]}.{_ENDINGS[key]}"


def _file(path: Path) -> File:
    return File(name=path.name, bytes=path.stat().st_size, sha256=file_digest(path))


def _json(content: Any) -> bytes:
    # ASCII keeps names that are not valid text as they are.
    return (json.dumps(content, indent=1) + "\n").encode()


def _remove_others(place: Path, keep_parts: bool = False) -> None:
    """Remove the files of earlier and of failed builds."""
    kept = {META, _LOCK}
    with suppress(OSError, UserError):  # nothing is removed if the index is damaged
        if os.path.lexists(place / META):
            kept |= {file.name for file in read_meta(place).files().values()}
        parts = unfinished(place) if keep_parts else None
        if parts is not None and parts.vectors not in kept:
            kept |= {PARTS, parts.vectors}
        for name in set(os.listdir(place)) - kept:  # noqa: PTH208
            if _OURS.fullmatch(name):
                (place / name).unlink()


def read(
    place: Path, device: torch.device, verify: bool = False
) -> tuple[Meta, list[str], Neighbours | Compressed]:
    """Return an index's facts, names and vectors; raise a UserError if it is missing or damaged.

    With ``verify``, large files are read from beginning to end, too.
    """
    meta = read_meta(place)
    try:
        if meta.index.sha256 is None:
            warnings.warn(_unprotected(place), stacklevel=3)
        names = read_names(place / meta.names.name, meta)
        for key, file in meta.files().items():
            if key != "names":  # whose digest has been checked
                _check(place / file.name, file, verify or key == "index")
        if meta.kind == "ivfpq":
            return meta, names, _compressed(place, meta)
        return meta, names, _neighbours(place / meta.index.name, meta, device)
    except UserError:
        if read_meta(place) == meta:
            raise
    return read(place, device, verify)  # it was replaced meanwhile


def _unprotected(place: Path) -> str:
    return printable(
        f"{place}: this index has no digests, so damage to it may go unnoticed; "
        "build it again with zoo index"
    )


def _check(path: Path, file: File, whole: bool) -> None:
    """Raise a UserError if a file is not the one described, by its digest if it is short."""
    try:
        check_regular(path)
        wrong = file.bytes is not None and path.stat().st_size != file.bytes
        if not wrong and file.sha256 is not None and (whole or (file.bytes or 0) <= _SOON_READ):
            wrong = file_digest(path) != file.sha256
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
    if wrong:
        raise damaged(path, _ANOTHER)


def _neighbours(path: Path, meta: Meta, device: torch.device) -> Neighbours:
    neighbours = Neighbours.read(path, meta.kind, device)
    if (neighbours.count, neighbours.size) != (meta.count, meta.vector_size or meta.embedding_size):
        raise damaged(path, _ANOTHER)
    neighbours.value = meta.value
    return neighbours


def _compressed(place: Path, meta: Meta) -> Compressed:
    path = place / meta.index.name
    if meta.lists is None or (meta.vectors is None and meta.refine):
        raise damaged(place / META, "it names no lists, or no vectors")
    try:
        vectors = None
        if meta.vectors is not None:
            vectors = vectors_in(place / meta.vectors.name, meta.embedding_size)
        with open_regular(path) as file, open_regular(place / meta.lists.name) as lists:
            found = Compressed.read(file, lists, vectors, meta.refine)
        if vectors is not None and len(vectors) != found.count:
            raise ValueError(_ANOTHER)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if (found.count, found.size) != (meta.count, meta.embedding_size):
        raise damaged(path, _ANOTHER)
    found.value = meta.value
    return found


def read_meta(place: Path) -> Meta:
    """Return the facts of an index; raise a UserError if there is none, or it is damaged."""
    path = place / META
    shown = printable(str(place))
    try:
        return Meta.model_validate(_content(path))
    except FileNotFoundError as error:
        raise UserError(f"{shown}: has no index; zoo index makes one") from error
    except NotADirectoryError as error:
        raise UserError(f"{shown}: is a file; give the folder of an index") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise damaged(path, f"{where}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def _content(path: Path) -> Any:
    """Return ``meta.json`` in the current format; raise a ValueError if its seal is wrong."""
    content = json.loads(read_bytes(path, _MOST_META))
    if not isinstance(content, dict):
        return content
    if SEAL not in content and "bytes" in content:  # before there were digests
        unknown = {"bytes": None, "sha256": None}
        files = {"index": _OLD_INDEX, "names": _OLD_NAMES}
        return content | {key: {"name": name, **unknown} for key, name in files.items()}
    if content != seal(content):
        raise ValueError("it was changed after it was written")
    return content


def read_names(path: Path, meta: Meta) -> list[str]:
    """Return the names; a name that leads out of the folder of images is refused."""
    known = meta.names
    try:
        data = read_bytes(path, _MOST_NAMES if known.bytes is None else known.bytes)
        if known.sha256 not in (None, hashlib.sha256(data).hexdigest()):
            raise ValueError("it is not the file that meta.json describes")
        names = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(names, list) or len(names) != meta.count:
        raise damaged(path, f"it does not have {meta.count} names")
    for name in names:
        if not isinstance(name, str) or "\0" in name or _leads_out(PurePosixPath(name)):
            raise damaged(path, f"{str(name)[:60]!r} is not the name of an image")
    return names


def _leads_out(name: PurePosixPath) -> bool:
    return name.is_absolute() or ".." in name.parts


def damaged(path: Path, why: str) -> UserError:
    """Return the error for a file that does not belong to a valid index."""
    return UserError(printable(f"{path}: damaged index ({why}); build it again with zoo index"))


def check_place(place: Path) -> None:
    """Raise a UserError, before hours of work, if a folder has other files or cannot be written."""
    shown = printable(str(place))
    with writing(place):
        try:
            names = sorted(os.listdir(place)) if os.path.lexists(place) else []  # noqa: PTH208
            strange = [n for n in names if not _OURS.fullmatch(n) or (place / n).is_dir()]
            if strange:
                raise UserError(
                    printable(f"{shown}: has other files than an index, such as {strange[0]}")
                    + "; name a folder that is new, empty or an index"
                )
            if META in names and not _looks_like_one(place):
                raise UserError(f"{shown}: has a {META} that is not of an index; move it away")
            if META not in names and {_OLD_INDEX, _OLD_NAMES} & {*names}:
                raise UserError(
                    f"{shown}: has files that may be of an index, but no {META}; move them"
                )
            if place.is_symlink():
                raise UserError(f"{shown}: is a symbolic link; name the folder itself")
            _try_to_write(place)
        except NotADirectoryError as error:
            raise UserError(f"{shown}: is a file; name a folder") from error


def _try_to_write(place: Path) -> None:
    place.absolute().parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        check_folder(place / META)
    else:
        place.mkdir()
        place.rmdir()


def _looks_like_one(place: Path) -> bool:
    try:
        content = json.loads(read_bytes(place / META, _MOST_META))
        return {"embedding_size", "network"} <= set(content)
    except (OSError, ValueError, TypeError, RecursionError):
        return False
