"""Cars196: Stanford Cars."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zoo.base import Count, Source, Split
from zoo.errors import UserError
from zoo.support.files import read_bytes

from ._benchmarks import Benchmark, Layout, Listing, lines_of

_TRAIN = range(1, 99)
_INSIDE = ("", "stanford_cars", "cars196")
_LABELLED = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")
_HINT = "devkit/cars_test_annos.mat has no labels"
_MOST = 1 << 28  # bytes of annotations, packed or not; those of the benchmark have below a million
_COMPRESSED = 15  # MATLAB's number for the type of a packed variable


class Cars196(Benchmark):
    """Stanford Cars: the first 98 models are for training, the other 98 for testing.

    8,054 images for training and 8,131 for testing, uncropped: both come from all 16,185, since the
    archive's own division into training and test images has every class in both. Known layouts are

    * ``car_ims/`` with ``cars_annos.mat``;
    * ``cars_train/``, ``cars_test/``, ``devkit/cars_train_annos.mat``, ``devkit/cars_meta.mat`` and
      ``cars_test_annos_withlabels.mat`` in ``devkit/`` or beside it, as in torchvision
      (``devkit/cars_test_annos.mat`` has no labels);
    * ``names.csv``, ``anno_train.csv``, ``anno_test.csv`` and ``car_data/``, which
      pytorch-metric-learning downloads.

    Args:
        split: ``"train"`` or ``"test"``.
        root: the folder; by default ``$ZOO_DATA/cars196``, or ``data/cars196`` in the cache folder.
        max_pixels: larger images are refused.

    Attributes:
        labels: int64 array (N,), from 0.
        class_names: such as ``"AM General Hummer SUV 2000"``.
        files: the images, as paths below ``folder`` with ``/``.
        folder: where the data set was found.
        layout: the layout found there.

    Raises:
        UserError: there is no such data set, or images are missing; says which and what to do.

    Source: Krause et al. 2013, 3D Object Representations for Fine-Grained Categorization. Split: Oh
    Song et al. 2016, Deep Metric Learning via Lifted Structured Feature Embedding.
    """

    name: ClassVar[str] = "cars196"
    # The authors' servers have neither any more, and nobody publishes digests of other copies.
    sources: ClassVar[tuple[Source, ...]] = (
        Source("cars_annos.mat", md5="b407c6086d669747186bd1d764ff9dbc"),
        Source(
            "car_ims.tgz",
            md5="d5c8f0aa497503f355e17dc7886c3f14",
            holds="car_ims",
            most_bytes=8 << 30,
            most_files=50_000,
        ),
    )
    table: ClassVar[Mapping[Split, Count]] = {"train": Count(8054, 98), "test": Count(8131, 98)}

    @classmethod
    def layouts(cls) -> tuple[Layout, ...]:
        """Return the layouts to look for."""
        merged = (("cars_annos.mat",), ("car_ims",))
        parts = ("cars_train", "cars_test", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
        tables = ("names.csv", "anno_train.csv", "anno_test.csv", "car_data")
        devkit = (*((one,) for one in parts), _LABELLED)
        by_class = tuple((one,) for one in tables)
        return (
            Layout("car_ims.tgz with cars_annos.mat", merged, _read_merged, _INSIDE),
            Layout(
                "cars_train and cars_test with the devkit", devkit, _read_devkit, _INSIDE, _HINT
            ),
            Layout("the folders of classes with CSV files", by_class, _read_csv, _INSIDE),
        )


def _read_merged(folder: Path) -> Listing:
    file = folder / "cars_annos.mat"
    return Listing(_images(file, "relative_im_path"), _class_names(file), _TRAIN)


def _read_devkit(folder: Path) -> Listing:
    labelled = next(folder / name for name in _LABELLED if (folder / name).exists())
    images = []
    for part, file in (
        ("cars_train", folder / "devkit" / "cars_train_annos.mat"),
        ("cars_test", labelled),
    ):
        within = _pictures(folder, part)
        images += [(f"{within}/{name}", number) for name, number in _images(file, "fname")]
    return Listing(images, _class_names(folder / "devkit" / "cars_meta.mat"), _TRAIN)


def _read_csv(folder: Path) -> Listing:
    lines = lines_of(folder / "names.csv")
    names = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    within = _pictures(folder, "car_data")
    images = []
    for part in ("train", "test"):
        file = folder / f"anno_{part}.csv"
        for row in _csv_rows(file):
            try:
                name, number = row[0], int(row[-1])
                title = names[number].replace("/", "-")
            except (IndexError, ValueError, KeyError) as error:
                raise UserError(
                    f"{str(file)!r}: {row!r} must be a file name, a box and the number of a class "
                    "in names.csv"
                ) from error
            images.append((f"{within}/{part}/{title}/{name}", number))
    return Listing(images, names, _TRAIN)


def _csv_rows(file: Path) -> list[list[str]]:
    try:
        return list(csv.reader(filter(None, lines_of(file))))
    except csv.Error as error:
        raise UserError(f"{str(file)!r} cannot be read: {error}") from error


def _pictures(folder: Path, name: str) -> str:
    """Return the folder of images: the archives of Kaggle have ``cars_train/cars_train/``."""
    return f"{name}/{name}" if (folder / name / name).is_dir() else name


def _images(file: Path, path_field: str) -> list[tuple[str, int]]:
    """Return path and class of each annotation in a struct array."""
    found = np.atleast_1d(_variable(file, "annotations"))
    fields = found.dtype.names or ()
    lacking = [field for field in (path_field, "class") if field not in fields]
    if lacking:
        raise UserError(
            f"{str(file)!r}: the annotations have no {' and no '.join(lacking)}; the test images "
            f"need {_LABELLED[0]}"
        )
    try:
        pairs = zip(found[path_field], found["class"], strict=True)
        return [(str(path), int(number)) for path, number in pairs]
    except (TypeError, ValueError) as error:
        raise UserError(f"{str(file)!r}: the class of an annotation is not an integer") from error


def _class_names(file: Path) -> dict[int, str]:
    names = np.atleast_1d(_variable(file, "class_names")).tolist()
    return {number: str(name) for number, name in enumerate(names, 1)}


def _variable(file: Path, name: str) -> Any:
    """Return a variable of a MATLAB file, which holds only data: nothing in it is executed."""
    from scipy.io import loadmat

    try:
        data = read_bytes(file, _MOST)
        _check_unpacked(data)
        return loadmat(io.BytesIO(data), squeeze_me=True, variable_names=[name])[name]
    except KeyError as error:
        raise UserError(f"{str(file)!r} has no variable {name!r}") from error
    except Exception as error:  # the reader may raise nearly anything for a broken file
        raise UserError(f"{str(file)!r} cannot be read: {error}") from error


def _check_unpacked(data: bytes) -> None:
    """Refuse variables that unpack to more than any list of images.

    Raises:
        ValueError, zlib.error: they do, or are not packed variables.
    """
    order: Any = "little" if data[126:128] == b"IM" else "big"
    place, left = 128, _MOST
    while place + 8 <= len(data):
        kind, size = (int.from_bytes(data[at : at + 4], order) for at in (place, place + 4))
        place += 8
        if kind == _COMPRESSED:
            left -= len(zlib.decompressobj().decompress(data[place : place + size], left + 1))
            if left < 0:
                raise ValueError(f"its variables unpack to more than {_MOST:,} bytes")
        place += size
