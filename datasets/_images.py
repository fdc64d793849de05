"""Shared by image data sets: checking every file once, class splits, cache files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import PIL

from zoo.base import cache_dir
from zoo.data.decoding import open_image, to_rgb, why_unreadable
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.support.files import open_regular, read_json, replace_file

T = TypeVar("T")

# ---- checking every file once


class Scan(NamedTuple):
    """The result of :func:`scan`, by name of the file.

    Attributes:
        digests: SHA-256 of each readable file.
        unreadable: why each of the others cannot be used.
    """

    digests: dict[str, str]
    unreadable: dict[str, str]


class _Seen(NamedTuple):
    """A file that was decoded without an error, and its state at that time."""

    size: int
    mtime_ns: int
    ctime_ns: int
    pixels: int
    digest: str


def scan(root: Path, names: Iterable[str], max_pixels: int) -> Scan:
    """Decode and hash the files ``root/name``, except those that have not changed since.

    Results for good files are stored in the cache folder, one file for each root. A file counts as
    changed if its size, its modification time or its status change time (ctime) has changed; the
    former can be set back after a change of the content, the latter cannot. Bad files are tried at
    every call.
    """
    names = list(names)
    store = _store(root)
    seen = _recall(store)
    fresh = [name for name in names if not _unchanged(root, name, seen.get(name), max_pixels)]
    unreadable: dict[str, str] = {}
    if fresh:
        pool = ThreadPoolExecutor()
        examine = functools.partial(_examine, root, max_pixels=max_pixels)
        try:
            results = zip(fresh, pool.map(examine, fresh), strict=True)
            for name, result in show_progress(results, len(fresh), "checking images"):
                if isinstance(result, _Seen):
                    seen[name] = result
                else:
                    unreadable[name] = result
        finally:  # an interrupted scan continues from here at the next start
            pool.shutdown(cancel_futures=True)
            kept = {name: seen[name] for name in names if name in seen}
            save(store, lambda file: file.write(json.dumps(kept).encode()))
    good = {name: seen[name].digest for name in names if name not in unreadable}
    return Scan(good, unreadable)


def forget_others(root: Path, digests: Mapping[str, str]) -> list[str]:
    """Delete stored results of files whose content, by name, differs from what was just read.

    Returns:
        the files that have changed although their size and times have not.
    """
    store = _store(root)
    seen = _recall(store)
    others = [name for name in digests.keys() & seen.keys() if seen[name].digest != digests[name]]
    secret = [name for name in others if _unchanged(root, name, seen[name], seen[name].pixels)]
    if others:
        kept = {name: one for name, one in seen.items() if name not in others}
        save(store, lambda file: file.write(json.dumps(kept).encode()))
    return sorted(secret)


def _examine(root: Path, name: str, max_pixels: int) -> _Seen | str:
    """Return what is to be stored about a good file, or what is wrong with a bad one."""
    try:
        with open_regular(root / name) as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return "empty file"
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            file.seek(0)
            with open_image(file, max_pixels) as image:
                pixels = image.width * image.height
                image.draft("L", (1, 1))  # decodes a JPEG at an eighth: all of the file, but faster
                to_rgb(image)
    except Exception as error:  # noqa: BLE001 a broken file makes a decoder raise nearly anything
        return why_unreadable(error)
    return _Seen(*_stamp(status), pixels, digest.hexdigest())


def _unchanged(root: Path, name: str, seen: _Seen | None, max_pixels: int) -> bool:
    if seen is None or seen.pixels > max_pixels:
        return False
    try:
        status = os.stat(f"{root}/{name}")  # noqa: PTH116 a hundred thousand Paths take seconds
    except OSError:
        return False
    return _stamp(status) == seen[:3]


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    """Return values that show, without reading a file, whether it has changed."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _store(root: Path) -> Path:
    """Return the file of the results for a root; another Pillow may read other files."""
    key = hashlib.sha256(os.fsencode(root) + PIL.__version__.encode()).hexdigest()
    return cache_dir() / f"scan-{key[:16]}.json"


def _recall(store: Path) -> dict[str, _Seen]:
    try:
        found = {name: _Seen(*seen) for name, seen in read_json(store).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # none yet, or damaged
        return {}
    return {name: seen for name, seen in found.items() if _fits(seen)}


def _fits(seen: _Seen) -> bool:
    """Return whether the values read have the types that were written."""
    return all(type(one) is int for one in seen[:4]) and isinstance(seen.digest, str)


# ---- small things


def hold_out(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Return the ``share`` of the names that is for testing; half a name goes to training.

    The order is that of digests, so that adding or removing a class moves no other class, and the
    version of a random number generator does not matter.
    """

    def draw(name: str) -> bytes:
        return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()

    count = round(len(names) * share - 1e-9)
    return frozenset(sorted(names, key=draw)[:count])


def check_split(split: str) -> None:
    """Raise a UserError unless the split is ``"train"`` or ``"test"``."""
    if split not in ("train", "test"):
        raise UserError(f"split is {split!r}; it must be 'train' or 'test'")


def save(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a cache file, whole or not at all; if that fails, warn and continue without it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
    except OSError as error:
        warnings.warn(
            f"nothing can be stored in {str(path.parent)!r} ({error.strerror or error}), so the "
            "next start does the work again; set ZOO_CACHE to another folder",
            stacklevel=2,
        )


def show_progress(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Yield the items, with a bar on stderr if that is a terminal."""
    yield from Reporter().track(items, total, text)
