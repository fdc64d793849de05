"""Cars196 on miniature replicas, with annotation files as the originals are; see test_cub200."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import zoo
from zoo.datasets._benchmarks import Count
from zoo.datasets.cars196 import Cars196
from zoo.errors import UserError

NAMES = [f"Make Model {number} 2012" for number in range(1, 197)]
NAMES[97] = "Ram C/V Cargo Van Minivan 2012"
NAMES[98] = 'Coupé, "GT" 🏎 2011'
TRAIN_CLASSES, TEST_CLASSES = [1, 98], [99, 196]
BOX = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def photo(seed, mode="RGB"):
    pixels = np.random.default_rng(seed).integers(0, 256, (36, 40, 4), np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGB").convert(mode)


def struct(fields, records):
    """Return a 1 x N MATLAB struct array."""
    array = np.zeros((1, len(records)), dtype=[(field, object) for field in fields])
    for i, record in enumerate(records):
        array[0, i] = record
    return array


def cell(texts):
    array = np.empty((1, len(texts)), object)
    array[0, :] = texts
    return array


def put(path, seed, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(seed, mode).save(path)


def rows():
    """Return (class, whether the archive has it for testing) of each image, four a class."""
    return [(number, i % 2) for number in TRAIN_CLASSES + TEST_CLASSES for i in range(4)]


def box():
    return tuple(np.uint16(side) for side in (1, 2, 300, 400))


def merged(root):
    records = []
    for i, (number, test) in enumerate(rows(), 1):
        path = f"car_ims/{i:06}.jpg"
        put(root / path, i)
        records.append((path, *box(), np.uint8(number), np.uint8(test)))
    fields = ("relative_im_path", *BOX, "class", "test")
    savemat(
        root / "cars_annos.mat",
        {"annotations": struct(fields, records), "class_names": cell(NAMES)},
    )


def parted(root, labelled="devkit/cars_test_annos_withlabels.mat", pictures="{}/{:05}.jpg"):
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": cell(NAMES)})
    files = ("devkit/cars_train_annos.mat", labelled)
    for test, (part, file) in enumerate(zip(("cars_train", "cars_test"), files, strict=True)):
        numbers = [number for number, tested in rows() if tested == test]
        for i in range(1, len(numbers) + 1):
            put(root / part / pictures.format(part, i).partition("/")[2], 100 * test + i)
        records = [(*box(), np.uint8(c), f"{i:05}.jpg") for i, c in enumerate(numbers, 1)]
        savemat(root / file, {"annotations": struct((*BOX, "class", "fname"), records)})
    unlabelled = struct((*BOX, "fname"), [(*box(), "00001.jpg")])
    savemat(root / "devkit" / "cars_test_annos.mat", {"annotations": unlabelled})


def by_class(root, within="car_data/car_data"):
    root.mkdir(exist_ok=True)
    (root / "names.csv").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    for test, part in enumerate(("train", "test")):
        numbers = [number for number, tested in rows() if tested == test]
        lines = []
        for i, number in enumerate(numbers, 1):
            title = NAMES[number - 1].replace("/", "-")
            put(root / within / part / title / f"{i:05}.jpg", 100 * test + i)
            lines.append(f"{i:05}.jpg,1,2,300,400,{number}\n")
        (root / f"anno_{part}.csv").write_text("".join(lines))


LAYOUTS = {
    "merged": (merged, "", "car_ims.tgz"),
    "devkit": (parted, "", "devkit"),
    "torchvision": (
        lambda root: parted(root / "stanford_cars", "cars_test_annos_withlabels.mat"),
        "stanford_cars",
        "devkit",
    ),
    "kaggle": (lambda root: parted(root, pictures="{0}/{0}/{1:05}.jpg"), "", "devkit"),
    "by_class": (by_class, "", "CSV"),
    "by_class_flat": (lambda root: by_class(root, "car_data"), "", "CSV"),
}


@pytest.fixture(autouse=True)
def table(monkeypatch, request):
    if "the_table" not in request.node.name:
        monkeypatch.setattr(Cars196, "table", {"train": Count(8, 2), "test": Count(8, 2)})


def both(root):
    return Cars196("train", str(root)), Cars196("test", str(root))


def test_the_table_is_that_of_the_paper(tmp_path):
    assert Cars196.table == {"train": (8054, 98), "test": (8131, 98)}
    merged(tmp_path)
    with pytest.warns(UserWarning, match="test: 8 images of 2 classes, .* 8,131 images of 98"):
        test = Cars196("test", str(tmp_path))
    assert [line.split(":")[1] for line in test.verify()] == [" 'train'", " 'test'"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, name):
    build, inside, title = LAYOUTS[name]
    build(tmp_path)
    (tmp_path / inside / "Thumbs.db").write_bytes(b"")
    for folder in {path.parent for path in tmp_path.rglob("*.jpg")}:
        (folder / "._00001.jpg").write_bytes(b"\0\5\x16\7")
    train, test = both(tmp_path)
    assert title in train.layout
    assert train.folder == tmp_path / inside
    assert train.class_names == [NAMES[0], NAMES[97]]
    assert test.class_names == [NAMES[98], NAMES[195]]
    # all of the archive, whatever it was for
    for data in (train, test):
        assert sorted(data.labels.tolist()) == [0] * 4 + [1] * 4
        assert {data[i][0].size for i in range(8)} == {(40, 36)}
    assert not set(train.files) & set(test.files)
    if name != "merged":
        assert sum("test" in file for file in train.files) == 4
    assert train.verify() == []


@pytest.mark.parametrize("name", ["merged", "devkit", "by_class"])
def test_label_and_picture_belong_together(tmp_path, name):
    LAYOUTS[name][0](tmp_path)
    for data, numbers in zip(both(tmp_path), (TRAIN_CLASSES, TEST_CLASSES), strict=True):
        for file, label in zip(data.files, data.labels, strict=True):
            rank = int(file.rpartition("/")[2][:-4])
            if name == "merged":
                number = rows()[rank - 1][0]
            else:
                part = int("test" in file.split("/")[-3 if name == "by_class" else 0])
                number = [number for number, test in rows() if test == part][rank - 1]
            assert numbers[label] == number


def test_the_folder_with_everything_wins(tmp_path):
    merged(tmp_path)
    parted(tmp_path)
    assert "cars_annos.mat" in Cars196("train", str(tmp_path)).layout
    shutil.rmtree(tmp_path / "car_ims")
    assert "devkit" in Cars196("train", str(tmp_path)).layout


def test_test_images_without_labels(tmp_path):
    parted(tmp_path)
    labelled = tmp_path / "devkit" / "cars_test_annos_withlabels.mat"
    labelled.unlink()
    with pytest.raises(UserError) as error:
        Cars196("train", str(tmp_path))
    first, *rest = str(error.value).splitlines()
    assert "no devkit/cars_test_annos_withlabels.mat or cars_test_annos_withlabels.mat" in first
    assert "cars_test_annos.mat has no labels" in first
    assert len(rest) == 2
    (tmp_path / "devkit" / "cars_test_annos.mat").rename(labelled)
    with pytest.raises(UserError, match=r"withlabels\.mat': the annotations have no class"):
        Cars196("train", str(tmp_path))


@pytest.mark.parametrize("lost", ["car_ims", "cars_annos.mat"])
def test_half_of_it(tmp_path, lost):
    (tmp_path / "data").mkdir()
    merged(tmp_path / "data")
    (tmp_path / "data" / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"looks like car_ims.tgz with .*there is no {lost}\n"):
        Cars196("train", str(tmp_path / "data"))


def test_missing(tmp_path):
    with pytest.raises(UserError) as error:
        Cars196("train", str(tmp_path))
    first, second, third = str(error.value).splitlines()
    for name in ("cars_annos.mat, car_ims", "devkit/cars_meta.mat", "names.csv", "stanford_cars"):
        assert name in first
    assert second.endswith("zoo data download cars196")
    assert "car_ims.tgz (MD5 d5c8f0aa497503f355e17dc7886c3f14, to be unpacked)" in third
    assert "cars_annos.mat (MD5 b407c6086d669747186bd1d764ff9dbc)" in third


@pytest.mark.parametrize("name", ["merged", "devkit", "by_class"])
def test_missing_images(tmp_path, name):
    LAYOUTS[name][0](tmp_path)
    lost = sorted(tmp_path.rglob("*.jpg"))[3]
    lost.unlink()
    with pytest.raises(UserError, match=rf"of 16 listed images 1 are missing .*{lost.name}'"):
        Cars196("test", str(tmp_path))


def annotate(root, fields, records, names=("a", "b")):
    (root / "car_ims").mkdir()
    content = {"annotations": struct(fields, records)}
    savemat(root / "cars_annos.mat", content | ({"class_names": cell(names)} if names else {}))


FIELDS = ("relative_im_path", "class")
BROKEN = [
    (FIELDS, [("../secret.jpg", 1), ("car_ims/2.jpg", 2)], ("a", "b"), "no image can have: '../s"),
    (FIELDS, [("/etc/secret.jpg", 1)], ("a", "b"), "no image can have"),
    (FIELDS, [("car_ims/1.jpg", 3)], ("a", "b"), r"no name: \[3\]"),
    (FIELDS, [("car_ims/1.jpg", "x")], ("a", "b"), "is no integer"),
    (FIELDS, [("car_ims/1.jpg", 1)], None, "no variable 'class_names'"),
    (("fname",), [("1.jpg",)], ("a",), "have no relative_im_path and no class"),
    (FIELDS, [("car_ims/1.jpg", 1)], ("a",), "of 1 listed images 1 are missing"),
]


@pytest.mark.parametrize(("fields", "records", "names", "message"), BROKEN)
def test_broken_annotations(tmp_path, fields, records, names, message):
    annotate(tmp_path, fields, records, names)
    with pytest.raises(UserError, match=message):
        Cars196("train", str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"404 not found", b"MATLAB 5.0 MAT-file" + b"\0" * 200])
def test_annotations_that_are_no_matlab_file(tmp_path, content):
    merged(tmp_path)
    (tmp_path / "cars_annos.mat").write_bytes(content)
    with pytest.raises(UserError, match=r"cars_annos\.mat'"):
        Cars196("train", str(tmp_path))


@pytest.mark.parametrize("line", ["00001.jpg,1,2,3,4,197", "00001.jpg,x", "00001.jpg", "../x,1"])
def test_broken_csv(tmp_path, line):
    by_class(tmp_path)
    (tmp_path / "anno_test.csv").write_text(line + "\n")
    with pytest.raises(UserError, match=r"anno_test\.csv'.*must be|no image can have"):
        Cars196("train", str(tmp_path))


def test_examine(tmp_path):
    merged(tmp_path)
    pictures = tmp_path / "car_ims"
    put(pictures / "000001.jpg", 1, "L")
    put(pictures / "000002.jpg", 2, "CMYK")
    shutil.copy(pictures / "000003.jpg", pictures / "000016.jpg")
    (pictures / "000004.jpg").write_bytes(b"\xff\xd8\xff")
    train, _ = both(tmp_path)
    assert [train[i][0].mode for i in range(3)] == ["RGB"] * 3
    lines = train.verify()
    assert lines[0].startswith("error: 'car_ims/000004.jpg': ")
    assert lines[1:] == [
        "warning: 'car_ims/000003.jpg': the same file in both splits: 'car_ims/000016.jpg'",
        "note: 'train': 1 gray images",
    ]


def test_fingerprint_pickle_and_name(tmp_path):
    merged(tmp_path)
    train = zoo.build("datasets", "cars196", split="train", root=str(tmp_path))
    copy = pickle.loads(pickle.dumps(train))
    assert copy.fingerprint() == train.fingerprint() == both(tmp_path)[0].fingerprint()
    assert copy[3][0].tobytes() == train[3][0].tobytes()
    assert both(tmp_path)[1].fingerprint() != train.fingerprint()
    put(tmp_path / "car_ims" / "000001.jpg", 1, "L")
    assert both(tmp_path)[0].fingerprint() != train.fingerprint()
