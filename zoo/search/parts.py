"""Embed the images of a folder part by part, into a file of vectors in the folder of an index.

After each part, ``parts.json`` says what the file has. A build that was killed continues from
there, if the network and the images are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from rich.filesize import decimal

from zoo.errors import MachineError
from zoo.progress import Reporter
from zoo.runs.identity import seal
from zoo.support.files import open_regular, read_json, replace_file, writing
from zoo.support.text import printable
from zoo.trained.files import Gathered

PARTS = "parts.json"

IN_A_PART = 1 << 16
"""Images of a part: what a kill costs."""

_BYTES = 2  # of a number in float16


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


Name = Annotated[str, PlainValidator(_text)]
"""The name of a file: Pydantic's own str refuses names that are not valid text."""


class EmbeddedPart(BaseModel):
    """A part of the images whose vectors are in the file."""

    model_config = ConfigDict(strict=True)

    digest: str = Field(description="of names, sizes and times of the files")
    count: int = Field(ge=0, description="vectors")
    unreadable: dict[Name, str]


class Unfinished(BaseModel):
    """The content of ``parts.json``, without its seal."""

    model_config = ConfigDict(strict=True)

    vectors: str = Field(pattern=r"^vectors-[0-9a-f]{16}\.f16$")
    made_by: str = Field(description="digest of what the vectors depend on")
    size: int = Field(ge=1)
    parts: list[EmbeddedPart]

    @property
    def count(self) -> int:
        """How many vectors there are."""
        return sum(part.count for part in self.parts)


class EmbeddedFiles(NamedTuple):
    """The images of a folder, with their vectors in a file."""

    file: Path
    names: list[str]
    unreadable: dict[str, str]


def embed_in_parts(
    place: Path,
    root: Path,
    names: list[str],
    size: int,
    made_by: str,
    embed: Callable[[list[str]], Gathered],
    reporter: Reporter,
) -> EmbeddedFiles:
    """Embed images and return the file of their vectors, which ``parts.json`` still belongs to.

    Args:
        place: the folder of the index.
        root: the folder of the images.
        names: the images within it.
        size: d, of the vectors.
        made_by: a digest of what the vectors depend on, apart from the images.
        embed: returns the embeddings of some of the images.
        reporter: where progress is reported.

    Raises:
        MachineError: the file cannot be written.
    """
    given = [names[i : i + IN_A_PART] for i in range(0, len(names), IN_A_PART)]
    digests = [_digest(root, part) for part in given]
    state = _continued(place, size, made_by, digests)
    done = len(state.parts)
    if done:
        reporter.say(f"embedding  {state.count:,} of {len(names):,} images are embedded already")
    with writing(place):
        _shorten(place / state.vectors, bytes_on_disk(state.count, size))
    for number in range(done, len(given)):
        if len(given) > 1:
            reporter.say(f"embedding  part {number + 1} of {len(given)}")
        found = embed(given[number])
        part = EmbeddedPart(
            digest=digests[number], count=len(found.names), unreadable=found.unreadable
        )
        with writing(place):
            _append(place / state.vectors, found.embeddings.astype("<f2"))
            state.parts.append(part)
            _save(place, state)
    unreadable = {name: why for part in state.parts for name, why in part.unreadable.items()}
    kept = [name for name in names if name not in unreadable] if unreadable else names
    return EmbeddedFiles(place / state.vectors, kept, unreadable)


def vectors_in(path: Path, size: int) -> NDArray[np.float16]:
    """Return the vectors (N, d) in a file, mapped into memory; raise an OSError or ValueError."""
    with open_regular(path) as file:
        return np.memmap(file, "<f2", "r").reshape(-1, size)


def unfinished(place: Path) -> Unfinished | None:
    """Return what an unfinished build left in a folder; None if that is nothing of use."""
    try:
        content = read_json(place / PARTS)
        if content != seal(content):
            return None
        found = Unfinished.model_validate(content)
        size = (place / found.vectors).stat().st_size
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    return found if size >= bytes_on_disk(found.count, found.size) else None


def bytes_on_disk(count: int, size: int) -> int:
    """Return what the file of ``count`` vectors of ``size`` numbers takes."""
    return count * size * _BYTES


def check_room(place: Path, needed: int) -> None:
    """Raise a MachineError, before hours of work, if the disk has not so many bytes.

    What an unfinished build left counts as there.
    """
    left = unfinished(place)
    needed -= bytes_on_disk(left.count, left.size) if left else 0
    with writing(place):
        there = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free
    if needed > free:
        raise MachineError(
            printable(f"{place}: the index needs {decimal(needed)} while it is built, ")
            + f"and {decimal(free)} are free; make room or name another disk"
        )


def _continued(place: Path, size: int, made_by: str, digests: list[str]) -> Unfinished:
    """Return what is there and still right, or a new beginning."""
    found = unfinished(place)
    if found is None or (found.size, found.made_by) != (size, made_by):
        name = f"vectors-{uuid.uuid4().hex[:16]}.f16"
        return Unfinished(vectors=name, made_by=made_by, size=size, parts=[])
    same = 0
    while same < min(len(found.parts), len(digests)) and (
        found.parts[same].digest == digests[same]
    ):
        same += 1
    return found.model_copy(update={"parts": found.parts[:same]})


def _digest(root: Path, names: list[str]) -> str:
    """Return a digest that changes if an image of a part is replaced."""
    whole = hashlib.sha256()
    for name in names:
        try:
            about = (root / name).stat()
            known = (name, about.st_size, about.st_mtime_ns)
        except (OSError, ValueError):
            known = (name, 0, 0)
        whole.update(json.dumps(known).encode())
    return whole.hexdigest()


def _shorten(path: Path, size: int) -> None:
    """Cut off what was written after the last whole part; make the file if there is none."""
    with path.open("ab") as file:
        file.truncate(size)


def _append(path: Path, vectors: NDArray[Any]) -> None:
    with path.open("ab") as file:
        file.write(vectors.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _save(place: Path, state: Unfinished) -> None:
    content = (json.dumps(seal(state.model_dump())) + "\n").encode()
    replace_file(place / PARTS, lambda file: file.write(content))
