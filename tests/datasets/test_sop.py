"""Sop on a miniature replica; what all benchmarks do is tested with test_cub200."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
import replicas
from replicas import SOP_HEADER as HEADER
from replicas import photo

import zoo
from zoo.datasets.sop import Sop
from zoo.errors import UserError


def lines_of(folder, split):
    return (folder / f"Ebay_{split}.txt").read_text().splitlines()


def both(root):
    return Sop("train", str(root)), Sop("test", str(root))


@pytest.fixture(autouse=True)
def table(monkeypatch, request):
    if "the_table" not in request.node.name:
        monkeypatch.setattr(Sop, "table", replicas.TABLES["sop"])


@pytest.fixture
def folder(tmp_path):
    replicas.sop(tmp_path / "Stanford_Online_Products")
    return tmp_path / "Stanford_Online_Products"


def test_the_table_is_that_of_the_paper(folder):
    assert Sop.table == {"train": (59551, 11318), "test": (60502, 11316)}
    with pytest.warns(
        UserWarning, match="train: 5 images of 2 classes, .* 59,551 images of 11,318"
    ):
        train = Sop("train", str(folder))
    assert [line.split(":")[1] for line in train.verify()] == [" 'train'", " 'test'"]


def test_the_tree_of_the_archive(tmp_path, folder):
    (folder / "bicycle_final" / "._111085122871_0.JPG").write_bytes(b"\0\5\x16\7")
    (folder / "bicycle_final" / "Thumbs.db").write_bytes(b"")
    photo(77).save(folder / "bicycle_final" / "999_0.JPG")
    train, test = both(tmp_path)
    assert train.layout == "the tree of Stanford_Online_Products.zip"
    assert train.class_names == ["bicycle/111085122871", "coffee_maker/7"]
    assert test.class_names == ["bicycle/111265328556", "toaster/8"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1]
    assert test.labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert test.labels.dtype == np.int64
    assert train.files[3] == "coffee_maker_final/7_0.JPG"
    assert test[-1][1] == 1
    assert train.verify() == []
    inner = Sop("train", str(folder))
    assert (inner.folder, inner.fingerprint()) == (folder, train.fingerprint())


def test_missing(tmp_path, folder):
    with pytest.raises(UserError) as error:
        Sop("train", str(tmp_path / "gone"))
    _, second, third = str(error.value).splitlines()
    assert second.startswith("download it with: zoo data download sop --root ")
    name, digest = "Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e"
    assert f"{name} (3,083,860,082 bytes, MD5 {digest})" in third
    (folder / "Ebay_test.txt").unlink()
    with pytest.raises(UserError, match=r"looks like the tree of .*there is no Ebay_test\.txt"):
        Sop("train", str(tmp_path))


def test_missing_images(tmp_path, folder):
    shutil.rmtree(folder / "toaster_final")
    (folder / "bicycle_final" / "111085122871_1.JPG").unlink()
    with pytest.raises(UserError, match=r"of 11 listed images 5 are missing .*'bicycle_final/1110"):
        Sop("train", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1 1 ../x.JPG", "invalid file names of images: '../x.JPG'"),
        ("1 1 1 /etc/x.JPG", "invalid file names of images"),
        ("1 1", "line 2: '1 1' must begin with 3 integers"),
        ("1 one 1 x.JPG", "line 2: .* must begin with 3 integers"),
        ("1 11319 1 bicycle_final/111085122871_0.JPG", "1 classes are in .* such as 11319"),
        ("1 1 1 toaster_final/8_0.JPG", "list 1 images twice: 'toaster_final/8_0.JPG'"),
    ],
)
def test_broken_lists(folder, line, message):
    lines = lines_of(folder, "train")
    replicas.write(folder / "Ebay_train.txt", [HEADER, line, *lines[2:]])
    with pytest.raises(UserError, match=message):
        Sop("train", str(folder))


def test_a_list_cut_short_is_told(folder):
    replicas.write(folder / "Ebay_test.txt", lines_of(folder, "test")[:-1])
    with pytest.warns(UserWarning, match="test: 5 images of 2 classes"):
        test = Sop("test", str(folder))
    assert test.verify()[0].startswith("error: 'test': 5 images of 2 classes")


def test_survey(folder):
    bicycles = folder / "bicycle_final"
    photo(1, "L").save(bicycles / "111085122871_0.JPG")
    photo(2, "CMYK").save(bicycles / "111085122871_1.JPG")
    shutil.copy(bicycles / "111085122871_2.JPG", bicycles / "111265328556_1.JPG")
    (folder / "toaster_final" / "8_1.JPG").write_bytes(b"GIF89a")
    train, test = both(folder)
    assert [train[i][0].mode for i in range(5)] == ["RGB"] * 5
    with pytest.raises(UserError, match=r"8_1\.JPG' cannot be used"):
        test[3]
    lines = train.verify()
    assert lines[0].startswith("error: 'toaster_final/8_1.JPG': ")
    assert lines[1:] == [
        "warning: 'bicycle_final/111085122871_2.JPG': the same file in both splits: "
        "'bicycle_final/111265328556_1.JPG'",
        "note: 'train': gray images (1): 'bicycle_final/111085122871_0.JPG'",
    ]


def test_fingerprint_pickle_and_name(folder):
    train = zoo.build("datasets", "sop", split="train", root=str(folder))
    copy = pickle.loads(pickle.dumps(train))
    assert copy.fingerprint() == train.fingerprint() == both(folder)[0].fingerprint()
    assert copy[3][0].tobytes() == train[3][0].tobytes()
    assert both(folder)[1].fingerprint() != train.fingerprint()
    lines = lines_of(folder, "train")
    replicas.write(folder / "Ebay_train.txt", [*lines[:-1], lines[-1].replace(" 2 4 ", " 1 1 ")])
    assert both(folder)[0].fingerprint() != train.fingerprint()
