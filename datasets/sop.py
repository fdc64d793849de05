"""Sop: Stanford Online Products."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from zoo.base import Count, Source, Split
from zoo.errors import UserError

from ._benchmarks import Benchmark, Layout, Listing, rows

_TREE = "Stanford_Online_Products"


class Sop(Benchmark):
    """Stanford Online Products: 11,318 products are for training, 11,316 others for testing.

    59,551 images for training and 60,502 for testing, as listed in ``Ebay_train.txt`` and
    ``Ebay_test.txt``; ``root`` is or holds the unpacked ``Stanford_Online_Products``
    (pytorch-metric-learning downloads the same).

    Args:
        split: ``"train"`` or ``"test"``.
        root: the folder; by default ``$ZOO_DATA/sop``, or ``data/sop`` in the cache folder.
        max_pixels: larger images are refused.

    Attributes:
        labels: int64 array (N,), from 0.
        class_names: kind and number of the product, such as ``"bicycle/111085122871"``.
        files: the images, as paths below ``folder`` with ``/``.
        folder: where the data set was found.
        layout: the layout found there.

    Raises:
        UserError: there is no such data set, or images are missing; says which and what to do.

    Source: Oh Song et al. 2016, Deep Metric Learning via Lifted Structured Feature Embedding.
    """

    name: ClassVar[str] = "sop"
    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "Stanford_Online_Products.zip",
            (
                "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                "https://drive.usercontent.google.com/download"
                "?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8&export=download&confirm=t",
            ),
            md5="7f73d41a2f44250d4779881525aea32e",
            sha256="b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
            size=3_083_860_082,
            holds=_TREE,
            most_bytes=12 << 30,
            most_files=300_000,
        ),
    )
    table: ClassVar[Mapping[Split, Count]] = {
        "train": Count(59551, 11318),
        "test": Count(60502, 11316),
    }

    @classmethod
    def layouts(cls) -> tuple[Layout, ...]:
        """Return the layouts to look for."""
        title = "the tree of Stanford_Online_Products.zip"
        needs = (("Ebay_train.txt",), ("Ebay_test.txt",))
        return (Layout(title, needs, _read, ("", _TREE)),)


def _read(folder: Path) -> Listing:
    train, test = (_rows(folder / f"Ebay_{part}.txt") for part in ("train", "test"))
    learnt = {number for _, number in train}
    both = learnt & {number for _, number in test}
    if both:
        raise UserError(
            f"{str(folder)!r}: {len(both)} classes are in Ebay_train.txt and in Ebay_test.txt, "
            f"such as {min(both)}"
        )
    images = train + test
    # The lists name no class: the first image of each does.
    names = {number: _title(path) for path, number in reversed(images)}
    return Listing(images, names, learnt)


def _rows(file: Path) -> list[tuple[str, int]]:
    return [(path, number) for (_, number, _), path in rows(file, 3, header=True)]


def _title(path: str) -> str:
    """Return ``"bicycle/111085122871"`` for ``"bicycle_final/111085122871_0.JPG"``."""
    kind, _, file = path.rpartition("/")
    return f"{kind.removesuffix('_final')}/{file.rpartition('_')[0] or file}"
