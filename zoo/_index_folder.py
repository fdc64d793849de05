"""The folder of an index: what is in it, written whole or not at all, read with suspicion.

``meta.json`` names the two other files and holds their digests and a seal of itself. To replace it
is the one step in which an index becomes another.
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

from zoo._files import (
    alone,
    check_folder,
    check_regular,
    file_digest,
    read_bytes,
    replace_file,
    writing,
)
from zoo._identity import SEAL, seal
from zoo._neighbours import Kind, Neighbours
from zoo._words import printable
from zoo.errors import UserError
from zoo.progress import Reporter

META, _LOCK = "meta.json", ".meta.json.lock"
_OLD_INDEX, _OLD_NAMES = "index.faiss", "names.json"  # as they were called before they had digests
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


# Pydantic's own takes no names of files whose bytes are no text.
_Name = Annotated[str, PlainValidator(_text)]


class Place(_Part):
    """Where something was when the index was made: in itself, and seen from the index."""

    path: _Name
    relative: _Name


class File(_Part):
    """A file of the index; of an old index neither bytes nor digest are known."""

    name: str = Field(pattern=r"^(index|names)(-[0-9a-f]{16})?\.(faiss|json)$")
    bytes: int | None = Field(ge=0)
    sha256: str | None = Field(description="in hexadecimal")


class Run(Place):
    """The run whose network made the embeddings."""

    name: _Name
    digest: str


class About(_Part):
    """What is known of an index before it is written."""

    version: str = Field(description="of metric-zoo")
    kind: Kind
    metric: Literal["cosine"] = "cosine"
    embedding_size: int = Field(ge=1)
    count: int = Field(ge=1)
    images: Place
    run: Run
    network: str = Field(description="digest of the network, see Trained.network_digest")
    parameter: str = Field(description="that trades time for recall: nprobe, efSearch or none")
    value: Annotated[int, Field(ge=0)]
    recall_at_10: float | None = Field(
        ge=0, le=1, description="against exact search; null: it is exact"
    )


class Meta(About):
    """What ``meta.json`` holds, beside its seal."""

    index: File
    names: File


def place_of(path: Path, seen_from: Path) -> dict[str, str]:
    """Return the fields of a Place."""
    return {"path": str(path), "relative": os.path.relpath(path, seen_from.resolve())}


def found_at(place: Place, folder: Path) -> Path | None:
    """Return where something is now: where it was, or in the same place as seen from the index."""
    for path in (Path(place.path), folder.resolve() / place.relative):
        try:
            if path.is_dir():
                return path.resolve()
        except (OSError, ValueError):  # a name too long, or with a null byte
            continue
    return None


def write(
    place: Path, names: list[str], neighbours: Neighbours, about: About, reporter: Reporter
) -> Meta:
    """Write an index into its folder; until its last step, the one that is there stays.

    Waits for another process that writes it. Removes what of others is left in the folder.

    Returns:
        ``about``, with the files.

    Raises:
        UserError: it cannot be written, or something else is in the folder by now.
    """
    try:
        with alone(place / META, reporter):
            check_place(place)  # again: much may have happened meanwhile
            try:
                with writing(place):
                    return _write(place, names, neighbours, about)
            finally:
                _remove_others(place)
    finally:
        _remove_empty(place)


def _remove_empty(place: Path) -> None:
    """Remove a folder that was made for an index which could not be written."""
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
    # ASCII: a name whose bytes are no text stays what it was.
    return (json.dumps(content, indent=1) + "\n").encode()


def _remove_others(place: Path) -> None:
    """Remove the files of earlier builds and of those that did not get through."""
    kept = {META, _LOCK}
    with suppress(OSError, UserError):  # of a damaged index nothing is removed
        if os.path.lexists(place / META):
            meta = read_meta(place)
            kept |= {meta.index.name, meta.names.name}
        for name in set(os.listdir(place)) - kept:  # noqa: PTH208
            if _OURS.fullmatch(name):
                (place / name).unlink()


def read(place: Path, device: torch.device) -> tuple[Meta, list[str], Neighbours]:
    """Return what is known of an index, its names and its vectors.

    Digests are looked at before anything else is made of a file.

    Raises:
        UserError: there is none, or it is damaged.
    """
    meta = read_meta(place)
    try:
        if meta.index.sha256 is None:
            warnings.warn(_unprotected(place), stacklevel=3)
        names = read_names(place / meta.names.name, meta)
        return meta, names, _neighbours(place / meta.index.name, meta, device)
    except UserError:
        if read_meta(place) == meta:
            raise
    return read(place, device)  # it was replaced in between


def _unprotected(place: Path) -> str:
    return printable(
        f"{place}: this index has no digests, so damage to it may go unnoticed; "
        "build it again with zoo index"
    )


def _neighbours(path: Path, meta: Meta, device: torch.device) -> Neighbours:
    try:
        check_regular(path)
        if meta.index.sha256 is not None and file_digest(path) != meta.index.sha256:
            raise damaged(path, "it is not the file that meta.json tells of")
        neighbours = Neighbours.read(path, meta.kind, device)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
    if (neighbours.count, neighbours.size) != (meta.count, meta.embedding_size):
        raise damaged(path, "it is not the file that meta.json tells of")
    neighbours.value = meta.value
    return neighbours


def read_meta(place: Path) -> Meta:
    """Return what is known of an index.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = place / META
    shown = printable(str(place))
    try:
        return Meta.model_validate(_content(path))
    except FileNotFoundError as error:
        raise UserError(f"{shown}: no index; zoo index makes one") from error
    except NotADirectoryError as error:
        raise UserError(f"{shown}: a file; give the folder of an index") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise damaged(path, f"{where}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def _content(path: Path) -> Any:
    """Return what ``meta.json`` holds, in the form of today, with its seal looked at.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    content = json.loads(read_bytes(path, _MOST_META))
    if not isinstance(content, dict):
        return content
    if SEAL not in content and "bytes" in content:  # before there were digests
        unknown = {"bytes": None, "sha256": None}
        files = {"index": _OLD_INDEX, "names": _OLD_NAMES}
        return content | {key: {"name": name, **unknown} for key, name in files.items()}
    if content != seal(content):
        raise ValueError("it is no longer what was written")
    return content


def read_names(path: Path, meta: Meta) -> list[str]:
    """Return the names; what leads out of the folder of images is refused."""
    known = meta.names
    try:
        data = read_bytes(path, _MOST_NAMES if known.bytes is None else known.bytes)
        if known.sha256 not in (None, hashlib.sha256(data).hexdigest()):
            raise ValueError("it is not the file that meta.json tells of")
        names = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(names, list) or len(names) != meta.count:
        raise damaged(path, f"it does not hold {meta.count} names")
    for name in names:
        if not isinstance(name, str) or "\0" in name or _leads_out(PurePosixPath(name)):
            raise damaged(path, f"{str(name)[:60]!r} is no name of an image")
    return names


def _leads_out(name: PurePosixPath) -> bool:
    return name.is_absolute() or ".." in name.parts


def damaged(path: Path, why: str) -> UserError:
    """Return what is said of a file that is not of an index."""
    return UserError(printable(f"{path}: not of an index ({why}); build it again with zoo index"))


def check_place(place: Path) -> None:
    """Refuse, before hours of work, a folder that an index could not be put into.

    Raises:
        UserError: it has other files, or cannot be written.
    """
    shown = printable(str(place))
    with writing(place):
        try:
            there = sorted(os.listdir(place)) if os.path.lexists(place) else []  # noqa: PTH208
            strange = [n for n in there if not _OURS.fullmatch(n) or (place / n).is_dir()]
            if strange:
                raise UserError(
                    printable(f"{shown}: has other files than an index, such as {strange[0]}")
                    + "; name a folder that is new, empty or an index"
                )
            if META in there and not _looks_like_one(place):
                raise UserError(f"{shown}: has a {META} that is none of an index; move it away")
            if META not in there and {_OLD_INDEX, _OLD_NAMES} & {*there}:
                raise UserError(
                    f"{shown}: has files that may be of an index, but no {META}; move them"
                )
            if place.is_symlink():
                raise UserError(f"{shown}: is a symbolic link; name the folder itself")
            _try_to_write(place)
        except NotADirectoryError as error:
            raise UserError(f"{shown}: a file is there; name a folder") from error


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
