"""Cars196 on miniature replicas, with annotation files as the originals are; see test_cub200."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
import replicas
from replicas import CARS, MODELS, car_images, cars, cars_by_class, cars_devkit, cell, struct
from scipy.io import loadmat, savemat

import zoo
from zoo.datasets import cars196
from zoo.datasets.cars196 import Cars196
from zoo.errors import UserError

LAYOUTS = {name: one for name, one in replicas.LAYOUTS.items() if one.dataset == "cars196"}


@pytest.fixture(autouse=True)
def table(monkeypatch, request):
    if "the_table" not in request.node.name:
        monkeypatch.setattr(Cars196, "table", replicas.TABLES["cars196"])


def both(root):
    return Cars196("train", str(root)), Cars196("test", str(root))


def test_the_table_is_that_of_the_paper(tmp_path):
    assert Cars196.table == {"train": (8054, 98), "test": (8131, 98)}
    cars(tmp_path)
    with pytest.warns(UserWarning, match="test: 8 images of 2 classes, .* 8,131 images of 98"):
        test = Cars196("test", str(tmp_path))
    assert [line.split(":")[1] for line in test.verify()] == [" 'train'", " 'test'"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, name):
    _, title, inside, make = LAYOUTS[name]
    make(tmp_path)
    (tmp_path / inside / "Thumbs.db").write_bytes(b"")
    for folder in {path.parent for path in tmp_path.rglob("*.jpg")}:
        (folder / "._00001.jpg").write_bytes(b"\0\5\x16\7")
    train, test = both(tmp_path)
    assert train.layout == title
    assert train.folder == tmp_path / inside
    assert train.class_names == [MODELS[0], MODELS[97]]
    assert test.class_names == [MODELS[98], MODELS[195]]
    # all of the archive, whatever it was for
    for data in (train, test):
        assert sorted(data.labels.tolist()) == [0] * 4 + [1] * 4
        assert {data[i][0].size for i in range(8)} == {(40, 36)}
    assert not set(train.files) & set(test.files)
    if name != "cars":
        assert sum("test" in file for file in train.files) == 4
    assert train.verify() == []


@pytest.mark.parametrize("name", ["cars", "cars_devkit", "cars_by_class"])
def test_label_and_picture_belong_together(tmp_path, name):
    LAYOUTS[name].make(tmp_path)
    for data, numbers in zip(both(tmp_path), (CARS[:2], CARS[2:]), strict=True):
        for file, label in zip(data.files, data.labels, strict=True):
            rank = int(file.rpartition("/")[2][:-4])
            if name == "cars":
                number = car_images()[rank - 1][0]
            else:
                part = int("test" in file.split("/")[-3 if name == "cars_by_class" else 0])
                number = [number for number, test in car_images() if test == part][rank - 1]
            assert numbers[label] == number


def test_the_folder_with_everything_wins(tmp_path):
    cars(tmp_path)
    cars_devkit(tmp_path)
    assert "cars_annos.mat" in Cars196("train", str(tmp_path)).layout
    shutil.rmtree(tmp_path / "car_ims")
    assert "devkit" in Cars196("train", str(tmp_path)).layout


def test_test_images_without_labels(tmp_path):
    cars_devkit(tmp_path)
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
    cars(tmp_path / "data")
    (tmp_path / "data" / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"looks like car_ims.tgz with .*there is no {lost}\n"):
        Cars196("train", str(tmp_path / "data"))


def test_missing(tmp_path):
    with pytest.raises(UserError) as error:
        Cars196("train", str(tmp_path))
    first, second, third = str(error.value).splitlines()
    for name in ("cars_annos.mat, car_ims", "devkit/cars_meta.mat", "names.csv", "stanford_cars"):
        assert name in first
    assert second.startswith(
        f"download it with: zoo data download cars196 --root {tmp_path} (no address"
    )
    assert "car_ims.tgz (MD5 d5c8f0aa497503f355e17dc7886c3f14)" in third
    assert "cars_annos.mat (MD5 b407c6086d669747186bd1d764ff9dbc)" in third


@pytest.mark.parametrize("name", ["cars", "cars_devkit", "cars_by_class"])
def test_missing_images(tmp_path, name):
    LAYOUTS[name].make(tmp_path)
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
    (
        FIELDS,
        [("../secret.jpg", 1), ("car_ims/2.jpg", 2)],
        ("a", "b"),
        "invalid file names of images: '../s",
    ),
    (FIELDS, [("/etc/secret.jpg", 1)], ("a", "b"), "invalid file names of images"),
    (FIELDS, [("car_ims/1.jpg", 3)], ("a", "b"), r"no name: \[3\]"),
    (FIELDS, [("car_ims/1.jpg", "x")], ("a", "b"), "is not an integer"),
    (FIELDS, [("car_ims/1.jpg", 1)], None, "no variable 'class_names'"),
    (("fname",), [("1.jpg",)], ("a",), "have no relative_im_path and no class"),
    (FIELDS, [("car_ims/1.jpg", 1)], ("a",), "of 1 listed images 1 are missing"),
]


@pytest.mark.parametrize(("fields", "records", "names", "message"), BROKEN)
def test_broken_annotations(tmp_path, fields, records, names, message):
    annotate(tmp_path, fields, records, names)
    with pytest.raises(UserError, match=message):
        Cars196("train", str(tmp_path))


def test_annotations_that_are_packed(tmp_path, monkeypatch):
    cars(tmp_path)
    plain = Cars196("train", str(tmp_path))
    path = tmp_path / "cars_annos.mat"
    found = {k: v for k, v in loadmat(path).items() if not k.startswith("__")}
    savemat(path, found, do_compression=True)
    packed = Cars196("train", str(tmp_path))
    assert list(packed.labels) == list(plain.labels)
    savemat(path, {**found, "zeros": np.zeros(200_000)}, do_compression=True)
    monkeypatch.setattr(cars196, "_MOST", 1_000_000)
    assert path.stat().st_size < 10_000
    with pytest.raises(UserError, match=r"cars_annos\.mat'.* unpack to more than 1,000,000 bytes"):
        Cars196("train", str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"404 not found", b"MATLAB 5.0 MAT-file" + b"\0" * 200])
def test_annotations_that_are_no_matlab_file(tmp_path, content):
    cars(tmp_path)
    (tmp_path / "cars_annos.mat").write_bytes(content)
    with pytest.raises(UserError, match=r"cars_annos\.mat'"):
        Cars196("train", str(tmp_path))


@pytest.mark.parametrize("line", ["00001.jpg,1,2,3,4,197", "00001.jpg,x", "00001.jpg", "../x,1"])
def test_broken_csv(tmp_path, line):
    cars_by_class(tmp_path)
    (tmp_path / "anno_test.csv").write_text(line + "\n")
    with pytest.raises(UserError, match=r"anno_test\.csv'.*must be|invalid file names of images"):
        Cars196("train", str(tmp_path))


def test_a_field_beyond_all_bounds(tmp_path):
    cars_by_class(tmp_path)
    (tmp_path / "anno_test.csv").write_text("x" * 140_000 + ",1\n")
    with pytest.raises(UserError, match=r"anno_test\.csv' cannot be read: field larger"):
        Cars196("train", str(tmp_path))


def test_survey(tmp_path):
    cars(tmp_path)
    pictures = tmp_path / "car_ims"
    replicas.save_photo(pictures / "000001.jpg", 1, "L")
    replicas.save_photo(pictures / "000002.jpg", 2, "CMYK")
    shutil.copy(pictures / "000003.jpg", pictures / "000016.jpg")
    (pictures / "000004.jpg").write_bytes(b"\xff\xd8\xff")
    train, _ = both(tmp_path)
    assert [train[i][0].mode for i in range(3)] == ["RGB"] * 3
    lines = train.verify()
    assert lines[0].startswith("error: 'car_ims/000004.jpg': ")
    assert lines[1:] == [
        "warning: 'car_ims/000003.jpg': the same file in both splits: 'car_ims/000016.jpg'",
        "note: 'train': gray images (1): 'car_ims/000001.jpg'",
    ]


def test_fingerprint_pickle_and_name(tmp_path):
    cars(tmp_path)
    train = zoo.build("datasets", "cars196", split="train", root=str(tmp_path))
    copy = pickle.loads(pickle.dumps(train))
    assert copy.fingerprint() == train.fingerprint() == both(tmp_path)[0].fingerprint()
    assert copy[3][0].tobytes() == train[3][0].tobytes()
    assert both(tmp_path)[1].fingerprint() != train.fingerprint()
    replicas.save_photo(tmp_path / "car_ims" / "000001.jpg", 1, "L")
    assert both(tmp_path)[0].fingerprint() != train.fingerprint()
