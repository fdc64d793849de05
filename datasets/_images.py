"""What the image data sets share: decoding that survives any file, class splits, cache files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import PIL
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from zoo._files import replace_file
from zoo.base import cache_dir
from zoo.errors import UserError

T = TypeVar("T")

MAX_PIXELS = 178_956_970  # where Pillow itself refuses an image as a decompression bomb

# EPS runs Ghostscript on what a stranger wrote; the others Pillow can only identify.
_REFUSED = frozenset({"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"})

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_opening = threading.Lock()  # Pillow's limit is a global, and files are opened in threads


# ---- decoding


def load_rgb(source: str | Path | BinaryIO, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the first image of a file in mode RGB, turned as its EXIF orientation says.

    Raises:
        UserError: names the file and says what is wrong with it, whatever the decoder raised.
    """
    try:
        with _open(source, max_pixels) as image:
            image.load()
            return _turn_upright(to_rgb(image), image)
    except Exception as error:
        name = source if isinstance(source, str | Path) else getattr(source, "name", "the image")
        raise UserError(f"{str(name)!r} cannot be used: {_reason(error)}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode in mode RGB, its transparent parts over white.

    Gray of more than 8 bits is scaled, never clipped: the white of integers is 65535, that of
    floating point the first of 1, 255 and 65535 that no pixel exceeds. An image with values beyond
    those is stretched from its least to its greatest.
    """
    if image.mode.startswith(("I", "F")):
        return _scale_deep_gray(image).convert("RGB")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


@functools.cache
def extensions() -> tuple[str, ...]:
    """Return the endings of the files that count as images, such as ``".jpg"``."""
    known = Image.registered_extensions().items()
    return tuple(ending for ending, name in known if name in _formats())


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.OPEN if name not in _REFUSED)


def _open(source: str | Path | BinaryIO, max_pixels: int) -> Image.Image:
    """Open an image without decoding it; Pillow's own limit is another only while that takes."""
    with _opening:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
        try:
            image = Image.open(source, formats=_formats())
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise _too_large("too many", max_pixels) from error
        finally:
            Image.MAX_IMAGE_PIXELS = before
    pixels = image.width * image.height
    if pixels > max_pixels:
        image.close()
        raise _too_large(f"{pixels:,}", max_pixels)
    return image


def _too_large(pixels: str, max_pixels: int) -> ValueError:
    return ValueError(
        f"it has {pixels} pixels, allowed are {max_pixels:,}; if you trust it, raise that limit "
        "with dataset.max_pixels=…"
    )


def _scale_deep_gray(image: Image.Image) -> Image.Image:
    values = np.array(image, dtype=np.float32)
    values[~np.isfinite(values)] = 0
    low, high = float(values.min()), float(values.max())
    whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        values, white = values - low, (high - low) or 1.0  # all the same: black
    return Image.fromarray((values * (255 / white) + 0.5).astype(np.uint8))


def _turn_upright(image: Image.Image, source: Image.Image) -> Image.Image:
    if source.format == "TIFF":  # Pillow turned it when it loaded it
        return image
    try:
        orientation = source.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # noqa: BLE001 broken EXIF data, which raises anything, spoils no pixel
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _reason(error: Exception) -> str:
    """Return what a decoder meant by an error, in one line without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow reads"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


# ---- looking at every file once


class Scan(NamedTuple):
    """What :func:`scan` found, by name of the file.

    Attributes:
        digests: SHA-256 of each readable file.
        unreadable: of the others, why they cannot be used.
    """

    digests: dict[str, str]
    unreadable: dict[str, str]


class _Seen(NamedTuple):
    """A file that was decoded without an error, and how it looked then."""

    size: int
    mtime_ns: int
    pixels: int
    digest: str


def scan(root: Path, names: Iterable[str], max_pixels: int) -> Scan:
    """Decode and hash the files ``root/name``, but for those that have not changed since.

    What is remembered of good files lies in the cache folder, one file for each root. Bad files are
    tried at every call.
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
        finally:  # an interrupted scan goes on from here at the next start
            pool.shutdown(cancel_futures=True)
            kept = {name: seen[name] for name in names if name in seen}
            save(store, lambda file: file.write(json.dumps(kept).encode()))
    good = {name: seen[name].digest for name in names if name not in unreadable}
    return Scan(good, unreadable)


def _examine(root: Path, name: str, max_pixels: int) -> _Seen | str:
    """Return what is to be remembered of a good file, or what is wrong with it."""
    try:
        with (root / name).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return "empty file"
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            file.seek(0)
            with _open(file, max_pixels) as image:
                pixels = image.width * image.height
                image.draft("L", (1, 1))  # a JPEG is decoded at an eighth: all of the file, quicker
                to_rgb(image)
    except Exception as error:  # noqa: BLE001 a broken file makes a decoder raise nearly anything
        return _reason(error)
    return _Seen(status.st_size, status.st_mtime_ns, pixels, digest.hexdigest())


def _unchanged(root: Path, name: str, seen: _Seen | None, max_pixels: int) -> bool:
    if seen is None or seen.pixels > max_pixels:
        return False
    try:
        status = os.stat(f"{root}/{name}")  # noqa: PTH116 a hundred thousand Paths take seconds
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (seen.size, seen.mtime_ns)


def _store(root: Path) -> Path:
    """Return where the results for a root are kept; another Pillow may read other files."""
    key = hashlib.sha256(os.fsencode(root) + PIL.__version__.encode()).hexdigest()
    return cache_dir() / f"scan-{key[:16]}.json"


def _recall(store: Path) -> dict[str, _Seen]:
    try:
        return {name: _Seen(*seen) for name, seen in json.loads(store.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or not one of ours
        return {}


# ---- small things


def hold_out(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Return the ``share`` of the names that is for testing; half a name goes to training.

    The order is that of digests, so that one class more or less moves no other one across, and no
    version of a random number generator matters.
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
    """Write a cache file, whole or not at all; where that fails, warn and go on without it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
    except OSError as error:
        warnings.warn(
            f"nothing can be kept in {str(path.parent)!r} ({error.strerror or error}), so the next "
            "start does the work again; set ZOO_CACHE to another folder",
            stacklevel=2,
        )


def show_progress(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Yield the items, with a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    yield from track(items, text, total, console=console, transient=True, disable=hidden)
