"""A contact sheet: each query, large, at the left, and its hits beside it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont, ImageOps

from zoo.data.decoding import load_rgb
from zoo.errors import UserError
from zoo.support.files import check_folder, replace_file, writing
from zoo.support.text import printable

MOST_ROWS = 100
"""Queries on a sheet, at most: image formats limit the height."""

_HIT, _QUERY = 132, 180  # pixels: sides of the squares that images are scaled into
_GAP, _LINE = 12, 15
_END = 200  # characters kept at either end of a text: more than there is room for
_PER_LINE = 10
_INK, _FAINT, _OWN, _PAPER, _EMPTY = "#1a1a1a", "#5f5f5f", "#0b62a4", "#ffffff", "#e4e4e4"


class Picture(NamedTuple):
    """An image on the sheet."""

    path: Path  # the image file
    title: str  # the first line below it
    name: str  # folder and file, for the next two lines; shortened in the middle if long
    marked: bool = False  # the title is highlighted: a query found itself


def check_ending(path: Path) -> None:
    """Raise a UserError, before a search, if a file cannot be written or its format is unknown."""
    Image.init()
    known = Image.registered_extensions()
    if known.get(path.suffix.lower()) not in Image.SAVE:
        raise UserError(printable(f"{path}: give an image file, such as sheet.png or sheet.jpg"))
    check_folder(path)


def draw(path: Path, rows: Sequence[tuple[Picture, Sequence[Picture]]], max_pixels: int) -> None:
    """Write a sheet with a row for each query and its hits; raise a UserError if that fails.

    An image that cannot be read is drawn as an empty square.
    """
    rows = rows[:MOST_ROWS]
    across = min(_PER_LINE, max((len(hits) for _, hits in rows), default=1)) or 1
    heights = [_height(len(hits)) for _, hits in rows]
    width = 3 * _GAP + _QUERY + across * (_HIT + _GAP)
    sheet = Image.new("RGB", (width, sum(heights) + _GAP), _PAPER)
    top = _GAP
    for (query, hits), height in zip(rows, heights, strict=True):
        _put(sheet, query, (_GAP, top), _QUERY, max_pixels)
        for i, hit in enumerate(hits):
            left = 3 * _GAP + _QUERY + i % across * (_HIT + _GAP)
            place = (left, top + i // across * _line_height(_HIT))
            _put(sheet, hit, place, _HIT, max_pixels)
        top += height
    kind = Image.registered_extensions()[path.suffix.lower()]
    with writing(path):
        replace_file(path, lambda file: sheet.save(file, kind))


def _height(hits: int) -> int:
    lines = -(-hits // _PER_LINE)
    return max(_line_height(_QUERY), lines * _line_height(_HIT))


def _line_height(side: int) -> int:
    return side + 3 * _LINE + _GAP


def _put(
    sheet: Image.Image, picture: Picture, corner: tuple[int, int], side: int, max_pixels: int
) -> None:
    left, top = corner
    pen = ImageDraw.Draw(sheet)
    try:
        image = ImageOps.contain(load_rgb(picture.path, max_pixels), (side, side))
        sheet.paste(image, (left + (side - image.width) // 2, top + (side - image.height) // 2))
    except UserError:
        pen.rectangle((left, top, left + side - 1, top + side - 1), fill=_EMPTY)
        pen.text((left + 6, top + 6), "cannot be read", _FAINT, _font(11))
    ink = _OWN if picture.marked else _INK
    pen.text((left, top + side + 2), _fitting(picture.title, side, 12), ink, _font(12))
    *_, folder, file = ("", *picture.name.split("/"))
    for line, text in enumerate((folder, file), 1):
        below = top + side + 2 + line * _LINE
        pen.text((left, below), _fitting(text, side, 11), _FAINT, _font(11))


def _fitting(text: str, width: int, size: int) -> str:
    """Return a text shortened in its middle to fit: both ends of a path are informative."""
    half = width // 2
    if len(text) > 2 * half:  # a letter is at least a pixel wide
        text = text[:half] + text[-half:]
    text = printable(text)
    if len(text) > 2 * _END:  # escapes have made it longer
        text = text[:_END] + text[-_END:]
    kept = len(text)
    shown = text
    while _font(size).getlength(shown) > width and kept > 4:
        kept -= 1
        head = kept // 2
        shown = f"{text[:head]}…{text[len(text) - (kept - head) :]}"
    return shown


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # Pillow's own font has only Latin letters.
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), size)
