"""Decoding of any file to an RGB image or, if that fails, a UserError."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from zoo.errors import UserError
from zoo.support.files import check_regular

MAX_PIXELS = 178_956_970  # above it, Pillow refuses an image as a decompression bomb

# EPS would run Ghostscript on untrusted input; the other formats Pillow can only identify.
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


def load_rgb(source: str | Path | BinaryIO, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return a file's first image, upright, in RGB; a UserError says what is wrong with it."""
    try:
        with open_image(source, max_pixels) as image:
            image.load()
            return upright(to_rgb(image), image)
    except Exception as error:
        name = source if isinstance(source, str | Path) else getattr(source, "name", "the image")
        raise UserError(f"{str(name)!r} cannot be used: {why_unreadable(error)}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode in mode RGB, its transparent parts over white.

    Gray of more than 8 bits is scaled, never clipped: white is 65535 for integers, and for floats
    the first of 1, 255 and 65535 that no pixel exceeds. Images with values outside of these ranges
    are stretched from their lowest to their highest value.
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
    """Return the extensions of files that count as images, such as ``".jpg"``."""
    known = Image.registered_extensions().items()
    return tuple(ending for ending, name in known if name in _formats())


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.OPEN if name not in _REFUSED)


def open_image(source: str | Path | BinaryIO, max_pixels: int) -> Image.Image:
    """Open an image without decoding it; Pillow's global limit is changed only meanwhile."""
    if isinstance(source, str | Path):
        check_regular(source)
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
        f"it has {pixels} pixels, but the limit is {max_pixels:,}; if you trust it, raise the "
        "limit with dataset.max_pixels=… (zoo run) or --max-pixels (zoo embed, index and search)"
    )


def _scale_deep_gray(image: Image.Image) -> Image.Image:
    values = np.array(image, dtype=np.float32)
    values[~np.isfinite(values)] = 0
    low, high = float(values.min()), float(values.max())
    whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        if high - low > float(np.finfo(np.float32).max):
            values = values.astype(np.float64)
        values, white = values - low, (high - low) or 1.0  # if all are equal: black
    return Image.fromarray((values * (255 / white) + 0.5).astype(np.uint8))


def upright(image: Image.Image, source: Image.Image) -> Image.Image:
    """Return an image rotated by the EXIF orientation of the one that it was made from."""
    if source.format == "TIFF":  # Pillow rotates it while loading
        return image
    try:
        orientation = source.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # noqa: BLE001 broken EXIF data, which raises anything, spoils no pixel
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def why_unreadable(error: Exception) -> str:
    """Return a decoder's error as one line without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow reads"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
