"""Small copies of test images, shared by all runs on the same data."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable

from PIL import Image

from zoo.base import ImageDataset
from zoo.report.output import Output

SIDE = 96  # pixels
_TINY = 48  # images up to this side are stored without loss


class Thumbnails:
    """The thumbnails of a data set, in a folder of the report.

    Args:
        dataset: the test split.
        output: the report.

    Attributes:
        folder: their folder, relative to the report.
        suffix: the ending of their names, which are the indices of the images.
    """

    def __init__(self, dataset: ImageDataset, output: Output) -> None:
        self.dataset, self.output = dataset, output
        key = hashlib.sha256(dataset.fingerprint().encode(errors="replace")).hexdigest()[:12]
        self.folder = f"thumbs/{key}"
        self.suffix = ".png" if max(dataset[0][0].size) <= _TINY else ".jpg"

    def path(self, index: int) -> str:
        """Return the path of an image's thumbnail, relative to the report."""
        return f"{self.folder}/{index}{self.suffix}"

    def make(self, indices: Iterable[int]) -> None:
        """Write the missing thumbnails of some images.

        Raises:
            UserError: if an image cannot be read, or a thumbnail cannot be written.
        """
        names = {index: self.path(index) for index in sorted(indices)}
        missing = [index for index, name in names.items() if not self.output.has(name)]
        self.output.claim(names.values())
        for index in missing:
            self.output.write(names[index], self._encode(self.dataset[index][0]))

    def _encode(self, image: Image.Image) -> bytes:
        small = shrink(image, SIDE)
        buffer = io.BytesIO()
        small.save(buffer, "PNG" if self.suffix == ".png" else "JPEG", quality=85)
        return buffer.getvalue()


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Return a copy of an image in mode RGB or L that fits a square."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small if small.mode in ("RGB", "L") else small.convert("RGB")
