"""Images as a caller gives them: paths, PIL images or arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from zoo.data.decoding import load_rgb, to_rgb, upright
from zoo.errors import UserError
from zoo.support.checked import shown

_WHAT_IMAGES_ARE = "give a path, a PIL image or a uint8 array"

ImageLike: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray[np.uint8]"


class GivenImages:
    """Images of a caller, as a data set."""

    def __init__(self, images: Sequence[Any], max_pixels: int) -> None:
        self.images_given, self.max_pixels = images, max_pixels
        self.labels = np.zeros(len(images), np.int64)
        self.class_names: Sequence[str] = [""]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return as_image(self.images_given[index], index, self.max_pixels), 0

    def fingerprint(self) -> str:
        """Return nothing: these images have no identity of their own."""
        return ""

    def verify(self) -> list[str]:
        """Return no problems: each image is checked when it is read."""
        return []


def in_a_list(images: Any) -> tuple[Sequence[Any], bool]:
    """Return images as a sequence, and whether a single image was given.

    An array of four dimensions holds several. Raises a UserError for anything but an image or an
    ordered collection of images.
    """
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return cast(Sequence[Any], images), False
    if isinstance(images, np.ndarray | str | os.PathLike | Image.Image):
        return [images], True
    if isinstance(images, torch.Tensor):
        raise UserError(
            "images are a torch tensor; embed_pixels takes tensors, uint8 (N, 3, H, W) that are "
            f"scaled and cropped. Here, {_WHAT_IMAGES_ARE}"
        )
    if not isinstance(images, Iterable) or isinstance(images, bytes | Mapping | Set | type):
        raise UserError(f"images are {shown(images)}; {_WHAT_IMAGES_ARE}, or a list of these")
    return images if isinstance(images, Sequence) else list(images), False


def as_image(given: Any, index: int, max_pixels: int) -> Image.Image:
    """Return an image in mode RGB or L."""
    if isinstance(given, str | os.PathLike):
        return load_rgb(Path(given), max_pixels)
    if isinstance(given, np.ndarray):
        is_image = given.ndim == 2 or (given.ndim == 3 and given.shape[2] == 3)
        if given.dtype != np.uint8 or not is_image or not given.size:
            raise UserError(
                f"image {index} is {given.dtype} of shape {given.shape}; arrays must be uint8 "
                "(H, W, 3) in RGB or (H, W) in gray"
            )
        given = Image.fromarray(given)
    if not isinstance(given, Image.Image):
        raise UserError(f"image {index} is {shown(given)}; {_WHAT_IMAGES_ARE}")
    return upright(given if given.mode in ("RGB", "L") else to_rgb(given), given)
