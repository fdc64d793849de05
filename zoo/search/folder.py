"""The folder of an index: its files, written atomically and checked when they are read.

``meta.json`` names the two other files and has their digests and a seal of itself. Replacing it is
the single step in which a new index takes the place of an old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
import warnings
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.runs.identity import SEAL, seal
from zoo.search.neighbours import Kind, Neighbours
from zoo.support.files import (
    alone,
    check_folder,
    check_regular,
    file_digest,
    read_bytes,
    replace_file,
    writing,
)
from zoo.support.text import printable

META, _LOCK = "meta.json", ".meta.json.lock"
_OLD_INDEX, _OLD_NAMES = "index.faiss", "names.json"  # names from before there were digests
_MOST_META, _MOST_NAMES = 1 << 20, 1 << 32  # bytes
_OURS = re.compile(
    r"(index|names)-[0-9a-f]{16}\.(faiss|json)|index\.faiss|names\.json|meta\.json"
    r"|\.meta\.json\.lock|\.(index|names|meta)[-.0-9a-z]*\.[0-9a-f]{32}\.tmp"
)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


# Pydantic's own str refuses file names that are not valid text.
_Name = Annotated[str, PlainValidator(_text)]


class OpenedFolder(_Part):
    """Where a folder was when the index was made: its path, and the path from the index."""

    path: _Name
    relative: _Name


class File(_Part):
    """A file of the index; an old index has neither bytes nor digest."""

    name: str = Field(pattern=r"^(index|names)(-[0-9a-f]{16})?\.(faiss|json)$")
    bytes: int | None = Field(ge=0)
    sha256: str | None = Field(description="in hexadecimal")


class SourceRun(OpenedFolder):
    """The run whose network made the embeddings."""

    name: _Name
    digest: str


class About(_Part):
    """The facts of an index before it is written."""

    version: str = Field(description="of metric-zoo")
    kind: Kind
    metric: Literal["cosine"] = "cosine"
    embedding_size: int = Field(ge=1)
    count: int = Field(ge=1)
    images: OpenedFolder
    run: SourceRun
    network: str = Field(description="digest of the network, see Trained.network_digest")
    parameter: str = Field(description="trades time for recall: nprobe, efSearch or empty")
    value: Annotated[int, Field(ge=0)]
    recall_at_10: float | None = Field(
        ge=0, le=1, description="against exact search; null: the index is exact"
    )


class Meta(About):
    """The content of ``meta.json``, without its seal."""

    index: File
    names: File


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
    try:
        with alone(place / META, reporter):
            check_place(place)  # again: it may have changed meanwhile
            try:
                with writing(place):
                    return _write(place, names, neighbours, about)
            finally:
                _remove_others(place)
    finally:
        _remove_empty(place)


def _remove_empty(place: Path) -> None:
    """Remove the folder of an index that could not be written."""
    with suppress(OSError):
        if os.listdir(place) == [_LOCK]:  # noqa: PTH208
            (place / _LOCK).unlink()
            place.rmdir()


def _write(place: Path, names: list[str], neighbours: Neighbours, about: About) -> Meta:
    build = uuid.uuid4().hex[:16]
    index, listing = place / f"index-{build}.faiss", place / f"names-{build}.json"
    replace_file(index, neighbours.write)
    replace_file(listing, lambda file: file.write(_json(names)))
    meta = Meta(**about.model_dump(), index=_file(index), names=_file(listing))
    content = _json(seal(meta.model_dump()))
    replace_file(place / META, lambda file: file.write(content))
    return meta


def _file(path: Path) -> File:
    return File(name=path.name, bytes=path.stat().st_size, sha256=file_digest(path))


def _json(content: Any) -> bytes:
    # ASCII keeps names that are not valid text as they are.
    return (json.dumps(content, indent=1) + "\n").encode()


def _remove_others(place: Path) -> None:
    """Remove the files of earlier and of failed builds."""
    kept = {META, _LOCK}
    with suppress(OSError, UserError):  # nothing is removed if the index is damaged
        if os.path.lexists(place / META):
            meta = read_meta(place)
            kept |= {meta.index.name, meta.names.name}
        for name in set(os.listdir(place)) - kept:  # noqa: PTH208
            if _OURS.fullmatch(name):
                (place / name).unlink()


def read(place: Path, device: torch.device) -> tuple[Meta, list[str], Neighbours]:
    """Return an index's facts, names and vectors; raise a UserError if it is missing or damaged."""
    meta = read_meta(place)
    try:
        if meta.index.sha256 is None:
            warnings.warn(_unprotected(place), stacklevel=3)
        names = read_names(place / meta.names.name, meta)
        return meta, names, _neighbours(place / meta.index.name, meta, device)
    except UserError:
        if read_meta(place) == meta:
            raise
    return read(place, device)  # it was replaced meanwhile


def _unprotected(place: Path) -> str:
    return printable(
        f"{place}: this index has no digests, so damage to it may go unnoticed; "
        "build it again with zoo index"
    )


def _neighbours(path: Path, meta: Meta, device: torch.device) -> Neighbours:
    try:
        check_regular(path)
        if meta.index.sha256 is not None and file_digest(path) != meta.index.sha256:
            raise damaged(path, "it is not the file that meta.json describes")
        neighbours = Neighbours.read(path, meta.kind, device)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
    if (neighbours.count, neighbours.size) != (meta.count, meta.embedding_size):
        raise damaged(path, "it is not the file that meta.json describes")
    neighbours.value = meta.value
    return neighbours


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
