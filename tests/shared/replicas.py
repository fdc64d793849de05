"""Miniature replicas of the benchmarks, in the layouts that people have on disk.

The directory trees and the formats of the annotation files are those of the originals; there are
few classes and images, and the images are noise. Some names have unusual characters.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.io import savemat

from zoo.base import Count


def photo(seed, mode="RGB", size=(40, 36)):
    """Return an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGB").convert(mode)


def save_photo(path, seed, mode="RGB", size=(40, 36)):
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(seed, mode, size).save(path)


def photographs(root, classes, each, size, suffix=".png"):
    """Write photographs: for each split a number of ``classes``, with ``each`` images."""
    for split, count in classes.items():
        for c in range(count):
            for i in range(each):
                save_photo(
                    root / split / f"{split}{c}" / f"{i}{suffix}", [c, i, len(split)], size=size
                )
    return root


def truncate(path):
    """Truncate a file, like a broken download."""
    path.write_bytes(path.read_bytes()[:700])


def write(file, lines):
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pack(folder, file):
    """Pack a folder into ``file``, a .tgz or .zip, and return its path."""
    kind = {".tgz": "gztar", ".zip": "zip"}[file.suffix]
    packed = shutil.make_archive(file.with_suffix(""), kind, folder.parent, folder.name)
    return shutil.move(packed, file)


# ---- CUB-200-2011. Class 101 is the first for testing.

SPECIES = {3: "003.Sooty_Albatross", 100: "100.Brown & [x] 'é'", 101: "101.a b", 200: "200.<b>"}


def cub(folder, species=SPECIES, each=3):
    """Write the tree of CUB_200_2011.tgz with some of the classes."""
    images, classes = [], []
    for number, name in species.items():
        for i in range(each):
            images.append(f"{name}/{i}.jpg")
            classes.append(number)
            save_photo(folder / "images" / images[-1], len(images))
    count = range(1, len(images) + 1)
    write(folder / "images.txt", (f"{i} {path}" for i, path in zip(count, images, strict=True)))
    write(
        folder / "image_class_labels.txt", (f"{i} {c}" for i, c in zip(count, classes, strict=True))
    )
    write(folder / "classes.txt", (f"{n} {species.get(n, f'{n:03}.x')}" for n in range(1, 201)))
    write(folder / "train_test_split.txt", (f"{i} {i % 2}" for i in count))
    write(folder / "bounding_boxes.txt", (f"{i} 6.0 2.0 30.0 31.0" for i in count))
    write(folder / "README", ["Caltech-UCSD Birds-200-2011"])
    return folder


def cub_folders(folder, species=SPECIES, each=3):
    """Write only the images of the archive."""
    cub(folder / "all", species, each)
    for one in (folder / "all" / "images").iterdir():
        one.rename(folder / one.name)
    shutil.rmtree(folder / "all")


# ---- Stanford Cars. Class 99 is the first for testing; the archive's own split is by images.

MODELS = [f"Make Model {number} 2012" for number in range(1, 197)]
MODELS[97] = "Ram C/V Cargo Van Minivan 2012"
MODELS[98] = 'Coupé, "GT" 🏎 2011'
CARS = (1, 98, 99, 196)
_CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
_BOX = tuple(np.uint16(side) for side in (1, 2, 300, 400))


def struct(fields, records):
    """Return a 1 x N MATLAB struct array."""
    array = np.zeros((1, len(records)), dtype=[(field, object) for field in fields])
    for i, record in enumerate(records):
        array[0, i] = record
    return array


def cell(texts):
    """Return a 1 x N MATLAB cell array."""
    array = np.empty((1, len(texts)), object)
    array[0, :] = texts
    return array


def car_images(classes=CARS, each=4):
    """Return the class of each image, and whether the archive has it for testing."""
    return [(number, i % 2) for number in classes for i in range(each)]


def cars(root, classes=CARS, each=4):
    """Write the content of car_ims.tgz and cars_annos.mat."""
    records = []
    for i, (number, test) in enumerate(car_images(classes, each), 1):
        path = f"car_ims/{i:06}.jpg"
        save_photo(root / path, i)
        records.append((path, *_BOX, np.uint8(number), np.uint8(test)))
    fields = ("relative_im_path", *_CORNERS, "class", "test")
    content = {"annotations": struct(fields, records), "class_names": cell(MODELS)}
    savemat(root / "cars_annos.mat", content)


def cars_devkit(
    root, labelled="devkit/cars_test_annos_withlabels.mat", pictures="{}/{:05}.jpg", classes=CARS
):
    """Write cars_train, cars_test and devkit, with the labels of the test images."""
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": cell(MODELS)})
    files = ("devkit/cars_train_annos.mat", labelled)
    for test, (part, file) in enumerate(zip(("cars_train", "cars_test"), files, strict=True)):
        numbers = [number for number, tested in car_images(classes) if tested == test]
        for i in range(1, len(numbers) + 1):
            save_photo(root / part / pictures.format(part, i).partition("/")[2], 100 * test + i)
        records = [(*_BOX, np.uint8(c), f"{i:05}.jpg") for i, c in enumerate(numbers, 1)]
        savemat(root / file, {"annotations": struct((*_CORNERS, "class", "fname"), records)})
    unlabelled = struct((*_CORNERS, "fname"), [(*_BOX, "00001.jpg")])
    savemat(root / "devkit" / "cars_test_annos.mat", {"annotations": unlabelled})


def cars_by_class(root, within="car_data/car_data", classes=CARS):
    """Write the folders of classes that pytorch-metric-learning downloads."""
    root.mkdir(parents=True, exist_ok=True)
    write(root / "names.csv", MODELS)
    for test, part in enumerate(("train", "test")):
        numbers = [number for number, tested in car_images(classes) if tested == test]
        lines = []
        for i, number in enumerate(numbers, 1):
            title = MODELS[number - 1].replace("/", "-")
            save_photo(root / within / part / title / f"{i:05}.jpg", 100 * test + i)
            lines.append(f"{i:05}.jpg,1,2,300,400,{number}")
        write(root / f"anno_{part}.csv", lines)


# ---- Stanford Online Products

SOP_HEADER = "image_id class_id super_class_id path"
# class, super class, kind, number of the product, images
PRODUCTS = {
    "train": [(1, 1, "bicycle", 111085122871, 3), (2, 4, "coffee_maker", 7, 2)],
    "test": [(11319, 1, "bicycle", 111265328556, 2), (22634, 12, "toaster", 8, 4)],
}


def sop(folder, products=PRODUCTS):
    """Write the tree of Stanford_Online_Products.zip with some of the products."""
    seed, every = 0, [SOP_HEADER]
    for split, some in products.items():
        lines = [SOP_HEADER]
        for number, over, kind, product, count in some:
            for i in range(count):
                seed += 1
                path = f"{kind}_final/{product}_{i}.JPG"
                save_photo(folder / path, seed)
                lines.append(f"{len(lines)} {number} {over} {path}")
                every.append(f"{seed} {number} {over} {path}")
        write(folder / f"Ebay_{split}.txt", lines)
    write(folder / "Ebay_info.txt", every)
    return folder


# ---- all of them


class Layout(NamedTuple):
    """A layout of a data set on disk: its name, its folder, and the function that makes it."""

    dataset: str
    title: str
    inside: str
    make: Callable[[Path], object]


LAYOUTS = {
    "cub_tree": Layout(
        "cub200",
        "the tree of CUB_200_2011.tgz",
        "CUB_200_2011",
        lambda root: cub(root / "CUB_200_2011"),
    ),
    "cub_folders": Layout(
        "cub200", "folders of classes, such as 001.Black_footed_Albatross", "", cub_folders
    ),
    "cars": Layout("cars196", "car_ims.tgz with cars_annos.mat", "", cars),
    "cars_devkit": Layout("cars196", "cars_train and cars_test with the devkit", "", cars_devkit),
    "cars_torchvision": Layout(
        "cars196",
        "cars_train and cars_test with the devkit",
        "stanford_cars",
        lambda root: cars_devkit(root / "stanford_cars", "cars_test_annos_withlabels.mat"),
    ),
    "cars_kaggle": Layout(
        "cars196",
        "cars_train and cars_test with the devkit",
        "",
        lambda root: cars_devkit(root, pictures="{0}/{0}/{1:05}.jpg"),
    ),
    "cars_by_class": Layout("cars196", "the folders of classes with CSV files", "", cars_by_class),
    "cars_by_class_flat": Layout(
        "cars196",
        "the folders of classes with CSV files",
        "",
        lambda root: cars_by_class(root, "car_data"),
    ),
    "sop": Layout(
        "sop",
        "the tree of Stanford_Online_Products.zip",
        "Stanford_Online_Products",
        lambda root: sop(root / "Stanford_Online_Products"),
    ),
}
TABLES = {
    "cub200": {"train": Count(6, 2), "test": Count(6, 2)},
    "cars196": {"train": Count(8, 2), "test": Count(8, 2)},
    "sop": {"train": Count(5, 2), "test": Count(6, 2)},
}
