"""Checks every image of a data set: which are unusable, duplicates or unusual."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from zoo.base import Finding, Split
from zoo.data.decoding import load_rgb
from zoo.errors import UserError
from zoo.support.files import read_bytes

from ._images import show_progress

_SPLITS: tuple[Split, Split] = ("train", "test")
_TINY = 32  # pixels per side
_MOST_BYTES = 1 << 30  # of a file, as it is read whole


class Look(NamedTuple):
    """The properties of a file; ``wrong`` says why it cannot be used."""

    digest: str = ""
    gray: bool = False
    tiny: bool = False
    wrong: str = ""


class Seen(NamedTuple):
    """An image that was checked.

    Attributes:
        split: its split.
        name: path below the folder of the data set.
        number: of its class, or the name of the class.
        look: its properties.
    """

    split: Split
    name: str
    number: int | str
    look: Look


def look_at_all(paths: Sequence[Path], max_pixels: int) -> list[Look]:
    """Read and decode every file, in threads, with a bar on stderr if that is a terminal."""
    pool = ThreadPoolExecutor()
    try:
        looks = pool.map(lambda path: _look_at(path, max_pixels), paths)
        return list(show_progress(looks, len(paths), "checking images"))
    finally:
        pool.shutdown(cancel_futures=True)


def _look_at(path: Path, max_pixels: int) -> Look:
    try:
        content = read_bytes(path, _MOST_BYTES)
        if not content:
            return Look(wrong="empty file")
        image = load_rgb(io.BytesIO(content), max_pixels)
    except UserError as error:
        return Look(wrong=str(error).removeprefix("'the image' cannot be used: "))
    except OSError as error:
        return Look(wrong=error.strerror or str(error))
    except MemoryError:
        return Look(wrong="too large to be read")
    red, green, blue = np.moveaxis(np.asarray(image), -1, 0)
    gray = np.array_equal(red, green) and np.array_equal(red, blue)
    return Look(hashlib.sha256(content).hexdigest(), gray, min(image.size) < _TINY)


def findings_of(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Yield what is wrong, doubtful or unusual about the images of a data set."""
    yield from (Finding("error", one.look.wrong, one.name) for one in seen if one.look.wrong)
    good = [one for one in seen if not one.look.wrong]
    yield from _twins(good)
    yield from _oddities(good)


def _twins(seen: list[Seen]) -> Iterator[Finding]:
    """Yield a finding for each group of files with the same content."""
    groups: dict[str, list[Seen]] = {}
    for one in seen:
        groups.setdefault(one.look.digest, []).append(one)
    for group in groups.values():
        first, *others = group
        across = {one.split for one in others} != {first.split}
        mixed = {one.number for one in others} != {first.number}
        how = "in both splits" if across else "with another label" if mixed else "of one class"
        if others:
            names = some([one.name for one in others])
            severity: Literal["warning", "note"] = "warning" if across or mixed else "note"
            yield Finding(severity, f"the same file {how}: {names}", first.name)


def _oddities(seen: list[Seen]) -> Iterator[Finding]:
    for split in _SPLITS:
        mine = [one for one in seen if one.split == split]
        gray = [one.name for one in mine if one.look.gray]
        tiny = [one.name for one in mine if one.look.tiny]
        for names, what in (
            (gray, "gray images"),
            (tiny, f"images with a side under {_TINY} pixels"),
        ):
            if names:
                yield Finding("note", f"{what} ({len(names):,}): {some(names)}", split)


def some(names: Sequence[str], count: int = 5) -> str:
    """Return the first few names, quoted, since a name may hold a line break, and how many more."""
    more = f" and {len(names) - count:,} more" if len(names) > count else ""
    return ", ".join(map(repr, names[:count])) + more
