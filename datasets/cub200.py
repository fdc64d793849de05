"""Cub200: Caltech-UCSD Birds-200-2011."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from zoo.base import Count, Source, Split
from zoo.data.decoding import extensions
from zoo.errors import UserError

from ._benchmarks import Benchmark, Layout, Listing, by_number, entries, rows

_TRAIN = range(1, 101)
_CLASS = re.compile(r"(\d{3})\..+", re.DOTALL)
_TREE = "CUB_200_2011"


class Cub200(Benchmark):
    """CUB-200-2011: birds; the first 100 species are for training, the other 100 for testing.

    5,864 images for training and 5,924 for testing, uncropped. Known layouts are the unpacked
    archive (``root`` is or holds ``CUB_200_2011``; pytorch-metric-learning downloads the same), and
    a folder of class folders such as ``001.Black_footed_Albatross``. The images of the former are
    those of its lists, and all must be there; those of the latter are all files that are not hidden
    and have an image's extension.

    Args:
        split: ``"train"`` or ``"test"``.
        root: the folder; by default ``$ZOO_DATA/cub200``, or ``data/cub200`` in the cache folder.
        max_pixels: larger images are refused.

    Attributes:
        labels: int64 array (N,), from 0.
        class_names: such as ``"001.Black_footed_Albatross"``.
        files: the images, as paths below ``folder`` with ``/``.
        folder: where the data set was found.
        layout: the layout found there.

    Raises:
        UserError: there is no such data set, or images are missing; says which and what to do.

    Source: Wah et al. 2011, The Caltech-UCSD Birds-200-2011 Dataset. Split: Oh Song et al. 2016,
    Deep Metric Learning via Lifted Structured Feature Embedding.
    """

    name: ClassVar[str] = "cub200"
    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "CUB_200_2011.tgz",
            (
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "https://s3.amazonaws.com/fast-ai-imageclas/CUB_200_2011.tgz",
            ),
            md5="97eceeb196236b17998738112f37df78",
            sha256="0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
            size=1_150_585_339,
            holds=_TREE,
            most_bytes=4 << 30,
            most_files=50_000,
        ),
    )
    table: ClassVar[Mapping[Split, Count]] = {"train": Count(5864, 100), "test": Count(5924, 100)}

    @classmethod
    def layouts(cls) -> tuple[Layout, ...]:
        """Return the layouts to look for."""
        lists = (("images.txt",), ("image_class_labels.txt",), ("classes.txt",), ("images",))
        folders = "folders of classes, such as 001.Black_footed_Albatross"
        return (
            Layout("the tree of CUB_200_2011.tgz", lists, _read_lists, ("", _TREE)),
            Layout(folders, (("[0-9][0-9][0-9].*",),), _read_folders, ("", _TREE)),
        )


def _read_lists(folder: Path) -> Listing:
    titles, labels, paths = (
        folder / name for name in ("classes.txt", "image_class_labels.txt", "images.txt")
    )
    names = by_number(titles, ((number, name) for (number,), name in rows(titles, 1)))
    classes = by_number(labels, ((image, number) for (image, number), _ in rows(labels, 2)))
    images = []
    for image, path in by_number(paths, ((i, path) for (i,), path in rows(paths, 1))).items():
        if image not in classes:
            raise UserError(
                f"image {image} of {str(paths)!r} has no class in image_class_labels.txt"
            )
        images.append((f"images/{path}", classes[image]))
    return Listing(images, names, _TRAIN)


def _read_folders(folder: Path) -> Listing:
    names: dict[int, str] = {}
    images = []
    for entry in entries(folder):
        match = _CLASS.fullmatch(entry.name)
        if not match or not (folder / entry.name).is_dir():
            continue
        number = int(match[1])
        if number in names:
            raise UserError(f"{str(folder)!r} has two folders for class {number}: {entry.name!r}")
        # A name of undecodable bytes has lone surrogates, which cannot be written to a report.
        names[number] = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
        images += [(f"{entry.name}/{n}", number) for n in _images(folder / entry.name)]
    return Listing(images, names, _TRAIN)


def _images(folder: Path) -> list[str]:
    names = [entry.name for entry in entries(folder)]
    return [n for n in names if not n.startswith(".") and n.lower().endswith(extensions())]
