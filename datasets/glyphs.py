"""Glyphs: characters drawn with matplotlib's typefaces, a data set without a download."""

from __future__ import annotations

import hashlib
import os
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from zoo.base import Split, cache_dir
from zoo.errors import UserError
from zoo.support.files import check_regular, file_digest

from ._images import check_split, hold_out, save, show_progress

_RECIPE = 1  # increase it with every change of the drawings
_SIDE = 32
_SIZE = 20  # px per em: all but about fifty characters fit the box
_BASELINE = 23  # row; at this one the fewest characters are lost
_LEAST_IMAGES = 6

_SLANTED = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
_FACES = tuple(family + style + ".ttf" for family, styles in _SLANTED.items() for style in styles)


class Glyphs:
    """Characters in sixteen typefaces: one class a character, one image a rendering; built in.

    The faces are the DejaVu Sans, Sans Mono, Serif and STIXGeneral that come with matplotlib, in
    four styles each. An image is 32 x 32 pixels, white on black, drawn at 20 px per em: centred
    horizontally, always on the same baseline and in the same size, so that a comma differs from an
    apostrophe, and an o from an O. Characters that do not fit the box are left out.

    A class is a character with at least six different renderings. Characters are taken in the
    order of their code points, and one that shares a rendering with an earlier class, in any face,
    is left out as a copy of that class (A in Latin, Greek and Cyrillic). So no two classes have an
    image in common; a few are very similar, such as g and the Armenian co.

    With Pillow 13.0 and FreeType 2.14.3 there are 2,323 classes and 27,014 images, 1,162 and 13,427
    of them for training. Another FreeType may draw a few pixels differently, so that some classes
    appear or disappear; the fingerprint shows it. The images are drawn at the first use, in a few
    seconds, and then stored in the cache folder.

    Args:
        split: ``"train"`` or ``"test"``; each has half of the classes.

    Attributes:
        images: uint8 tensor (N, 1, 32, 32).
        labels: int64 array (N,), ascending from 0.
        class_names: such as ``"U+0041 LATIN CAPITAL LETTER A"``.

    Raises:
        UserError: ``split`` is something else, or matplotlib came without its fonts.
    """

    def __init__(self, split: Split) -> None:
        check_split(split)
        self.split = split
        glyphs = _load()
        names = [f"U+{code:04X} {unicodedata.name(chr(code))}" for code in glyphs.codes.tolist()]
        test = hold_out(names, share=0.5, seed=0)
        chosen = np.array([(name in test) == (split == "test") for name in names])
        self.class_names = [name for name, mine in zip(names, chosen, strict=True) if mine]
        self.labels: NDArray[np.int64] = np.repeat(
            np.arange(len(self.class_names)), glyphs.counts[chosen]
        )
        import torch  # not for `zoo data list`, which loads this class

        pixels = glyphs.images[np.repeat(chosen, glyphs.counts)]
        self.images = torch.from_numpy(pixels).unsqueeze(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index, 0].numpy()), int(self.labels[index])

    def fingerprint(self) -> str:
        """Return a digest of the split, the pixels and the labels."""
        digest = hashlib.sha256(self.split.encode())
        digest.update(self.images.numpy().tobytes())
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def verify(self) -> list[str]:
        """Return an empty list: there are no files that could be wrong."""
        return []


class _Glyphs(NamedTuple):
    """All classes: ``images`` uint8 (N, 32, 32) in the order of ``codes``, ``counts`` of each."""

    codes: NDArray[np.int64]
    counts: NDArray[np.int64]
    images: NDArray[np.uint8]


def _load() -> _Glyphs:
    """Return the glyphs from the cache; render them first if it has no valid copy."""
    faces = _find_faces()
    path = cache_dir() / f"glyphs-{_key(faces)}.npz"
    try:
        check_regular(path)
        with np.load(path, allow_pickle=False) as file:
            return _Glyphs(file["codes"], file["counts"], file["images"])
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error):
        glyphs = _draw_all(faces)
    save(path, lambda file: np.savez_compressed(file, **glyphs._asdict()))
    return glyphs


def _find_faces() -> list[Path]:
    import matplotlib  # heavy, and only for this

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    faces = [folder / face for face in _FACES]
    missing = [face.name for face in faces if not face.is_file()]
    if missing:
        raise UserError(
            f"glyphs are drawn with fonts of matplotlib that are missing in {str(folder)!r}: "
            f"{', '.join(missing)}; install matplotlib from PyPI, which has them"
        )
    return faces


def _key(faces: Iterable[Path]) -> str:
    """Return a digest of everything that affects the pixels."""
    versions = (PIL.__version__, features.version("freetype2"), unicodedata.unidata_version)
    digest = hashlib.sha256(repr((_RECIPE, versions)).encode())
    for face in faces:
        digest.update(bytes.fromhex(file_digest(face)))
    return digest.hexdigest()[:16]


def _draw_all(faces: list[Path]) -> _Glyphs:
    covered = {face: _characters(face) for face in faces}
    often = Counter(character for characters in covered.values() for character in characters)
    # A dict of bitmaps, by character: it keeps their order and drops duplicates.
    drawn: dict[str, dict[bytes, None]] = {
        character: {} for character in sorted(often) if often[character] >= _LEAST_IMAGES
    }
    for face in show_progress(faces, len(faces), "drawing glyphs"):
        font = ImageFont.truetype(os.fspath(face), _SIZE, layout_engine=ImageFont.Layout.BASIC)
        for character in covered[face] & drawn.keys():
            bitmap = _draw(character, font)
            if bitmap is not None:
                drawn[character][bitmap] = None
    classes = _distinct(drawn)
    bitmaps = b"".join(bitmap for renderings in classes.values() for bitmap in renderings)
    return _Glyphs(
        np.array([ord(character) for character in classes], dtype=np.int64),
        np.array([len(renderings) for renderings in classes.values()], dtype=np.int64),
        np.frombuffer(bytearray(bitmaps), dtype=np.uint8).reshape(-1, _SIDE, _SIDE),
    )


def _characters(face: Path) -> set[str]:
    """Return the characters of a face, except spaces, marks and code points without a name."""
    from matplotlib.ft2font import FT2Font

    characters = map(chr, FT2Font(os.fspath(face)).get_charmap())
    return {c for c in characters if unicodedata.category(c)[0] not in "ZCM"}


def _draw(character: str, font: ImageFont.FreeTypeFont) -> bytes | None:
    """Return the pixels of a character, or None if it is blank or does not fit the box."""
    left, top, right, bottom = map(int, font.getbbox(character, anchor="ls"))
    if right - left > _SIDE or _BASELINE + top < 0 or _BASELINE + bottom > _SIDE:
        return None
    image = Image.new("L", (_SIDE, _SIDE))
    start = ((_SIDE - right + left) // 2 - left, _BASELINE)
    ImageDraw.Draw(image).text(start, character, fill=255, font=font, anchor="ls")
    return image.tobytes() if image.getbbox() else None


def _distinct(drawn: dict[str, dict[bytes, None]]) -> dict[str, dict[bytes, None]]:
    """Return the characters with enough renderings that no earlier character has."""
    classes: dict[str, dict[bytes, None]] = {}
    taken: set[bytes] = set()
    for character, renderings in drawn.items():
        if len(renderings) >= _LEAST_IMAGES and taken.isdisjoint(renderings):
            classes[character] = renderings
            taken.update(renderings)
    return classes
