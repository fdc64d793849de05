"""The folder of an index: what is in it, written whole or not at all, read with suspicion."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo._files import cannot_write, read_json
from zoo._neighbours import Kind, Neighbours
from zoo._words import printable
from zoo.errors import UserError

INDEX, NAMES, META = "index.faiss", "names.json", "meta.json"
_FILES = frozenset({INDEX, NAMES, META})
_MOST = 1 << 30  # bytes of the names of millions of images


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Place(_Part):
    """Where something was when the index was made: in itself, and seen from the index."""

    path: str
    relative: str


class Run(Place):
    """The run whose network made the embeddings."""

    name: str
    digest: str


class Meta(_Part):
    """What ``meta.json`` holds."""

    version: str = Field(description="of metric-zoo")
    kind: Kind
    metric: Literal["cosine"] = "cosine"
    embedding_size: int = Field(ge=1)
    count: int = Field(ge=1)
    bytes: int = Field(ge=1, description="of index.faiss")
    images: Place
    run: Run
    network: str = Field(description="digest of the network, see Trained.network_digest")
    parameter: str = Field(description="that trades time for recall: nprobe, efSearch or none")
    value: Annotated[int, Field(ge=0)]
    recall_at_10: float | None = Field(
        ge=0, le=1, description="against exact search; null: it is exact"
    )


def place_of(path: Path, seen_from: Path) -> dict[str, str]:
    """Return the fields of a Place."""
    relative = os.path.relpath(path, seen_from.resolve())
    # A path of bytes that are no text cannot be looked for later, but is no reason to fail now.
    shown = [os.fsencode(one).decode("utf-8", "backslashreplace") for one in (path, relative)]
    return dict(zip(("path", "relative"), shown, strict=True))


def found_at(place: Place, folder: Path) -> Path | None:
    """Return where something is now: where it was, or in the same place as seen from the index."""
    for path in (Path(place.path), folder.resolve() / place.relative):
        try:
            if path.is_dir():
                return path.resolve()
        except (OSError, ValueError):  # a name too long, or with a null byte
            continue
    return None


def write(place: Path, names: list[str], neighbours: Neighbours, meta: Meta) -> None:
    """Write the three files beside their place, and put them there in one step."""
    new, old = _beside(place, "new"), _beside(place, "old")
    try:
        new.mkdir()
        neighbours.write(new / INDEX)
        meta.bytes = (new / INDEX).stat().st_size
        for name, content in ((NAMES, names), (META, meta.model_dump())):
            (new / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        check_place(place)  # again: much may have happened meanwhile
        if place.exists():
            place.rename(old)
        new.rename(place)
    except OSError as error:
        if old.exists() and not place.exists():
            old.rename(place)
        raise cannot_write(place, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _remove(old)


def _remove(old: Path) -> None:
    """Remove an index, and nothing else that may have got into its folder."""
    with suppress(OSError):
        for name in _FILES:
            (old / name).unlink(missing_ok=True)
        old.rmdir()


def read_meta(place: Path) -> Meta:
    """Return what is known of an index.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = place / META
    shown = printable(str(place))
    try:
        return Meta.model_validate(_read_json(path))
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


def read_names(path: Path, count: int) -> list[str]:
    """Return the names; what leads out of the folder of images is refused."""
    try:
        names = _read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(names, list) or len(names) != count:
        raise damaged(path, f"it does not hold {count} names")
    for name in names:
        if not isinstance(name, str) or "\0" in name or _leads_out(PurePosixPath(name)):
            raise damaged(path, f"{str(name)[:60]!r} is no name of an image")
    return names


def _leads_out(name: PurePosixPath) -> bool:
    return name.is_absolute() or ".." in name.parts


def _read_json(path: Path) -> Any:
    return read_json(path, _MOST)


def damaged(path: Path, why: str) -> UserError:
    """Return what is said of a file that is not of an index."""
    return UserError(printable(f"{path}: not of an index ({why}); build it again with zoo index"))


def check_place(place: Path) -> None:
    """Refuse, before hours of work, a folder that an index could not be put into.

    Raises:
        UserError: it has other files, or cannot be written.
    """
    shown = printable(str(place))
    try:
        there = sorted(os.listdir(place)) if os.path.lexists(place) else []  # noqa: PTH208
        strange = [n for n in there if n not in _FILES or not (place / n).is_file()]
        if strange:
            raise UserError(
                printable(f"{shown}: has other files than an index, such as {strange[0]}")
                + "; name a folder that is new, empty or an index"
            )
        if there and not _looks_like_one(place):
            raise UserError(f"{shown}: has a {META} that is none of an index; move it away")
        if place.is_symlink():
            raise UserError(f"{shown}: is a symbolic link; name the folder itself")
        place.absolute().parent.mkdir(parents=True, exist_ok=True)
        trial = _beside(place, "try")
        trial.mkdir()
        trial.rmdir()
    except UserError:
        raise
    except NotADirectoryError as error:
        raise UserError(f"{shown}: a file is there; name a folder") from error
    except (OSError, ValueError) as error:
        raise cannot_write(place, error) from error


def _looks_like_one(place: Path) -> bool:
    try:
        return {"embedding_size", "network"} <= set(_read_json(place / META))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _beside(place: Path, what: str) -> Path:
    place = place.absolute()
    return place.with_name(f".{place.name}.{uuid.uuid4().hex}.{what}")
