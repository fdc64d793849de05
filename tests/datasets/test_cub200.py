"""Cub200 on miniature replicas, and with it what all benchmarks do: finding, errors, verify."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import warnings

import pytest
import replicas
from replicas import SPECIES, photo, truncate, write
from torch.utils.data import DataLoader

import zoo
from zoo.base import ImageDataset, data_dir
from zoo.datasets import _looks
from zoo.datasets.cub200 import Cub200
from zoo.errors import UserError

TRAIN = [f"{SPECIES[number]}/{i}.jpg" for number in (3, 100) for i in range(3)]
TEST = [f"{SPECIES[number]}/{i}.jpg" for number in (101, 200) for i in range(3)]
MISCOUNTED = "ignore:.*published results are for"


def both(root, **options):
    return Cub200("train", str(root), **options), Cub200("test", str(root), **options)


@pytest.fixture
def table(monkeypatch):
    """Let the miniature count as the whole."""
    monkeypatch.setattr(Cub200, "table", replicas.TABLES["cub200"])


@pytest.fixture
def root(tmp_path):
    replicas.cub(tmp_path / "CUB_200_2011")
    return tmp_path


@pytest.fixture
def tree(root):
    return root / "CUB_200_2011"


def test_the_table_is_that_of_the_paper():
    assert Cub200.table == {"train": (5864, 100), "test": (5924, 100)}


@pytest.mark.usefixtures("table")
def test_the_tree_of_the_archive(root, tree):
    train, test = both(root)
    assert train.layout == "the tree of CUB_200_2011.tgz"
    assert train.files == [f"images/{name}" for name in TRAIN]
    assert test.files == [f"images/{name}" for name in TEST]
    assert train.class_names == [SPECIES[3], SPECIES[100]]
    assert test.class_names == [SPECIES[101], SPECIES[200]]
    assert train.labels.tolist() == test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.labels.dtype == "int64"
    assert isinstance(train, ImageDataset)
    image, label = test[-1]
    assert (image.mode, image.size, label, type(label)) == ("RGB", (40, 36), 1, int)
    assert len(train) == 6
    with pytest.raises(IndexError):
        train[6]
    inner = Cub200("train", str(tree))
    assert (inner.folder, inner.fingerprint()) == (train.folder, train.fingerprint())
    assert train.verify() == []


@pytest.mark.usefixtures("table")
def test_a_folder_of_classes(root, tree):
    images = tree / "images"
    (images / "._003.Sooty_Albatross").write_bytes(b"")
    (images / SPECIES[3] / "._0.jpg").write_bytes(b"\0\5\x16\7")
    (images / SPECIES[101] / "Thumbs.db").write_bytes(b"")
    train, test = both(images)
    assert "001.Black_footed_Albatross" in train.layout
    assert (train.files, test.files) == (TRAIN, TEST)
    assert (train.class_names, test.labels.tolist()) == (
        [SPECIES[3], SPECIES[100]],
        [0, 0, 0, 1, 1, 1],
    )
    (images / "004.circle").symlink_to("004.circle")
    (images / "005.txt").write_text("")
    assert Cub200("train", str(images)).files == TRAIN
    (images / "003.Twin").mkdir()
    with pytest.raises(UserError, match=r"two folders for class 3: '003\.Twin'"):
        Cub200("train", str(images))


@pytest.mark.usefixtures("table")
def test_undecodable_folder_name_can_be_written(tree):
    folder = os.fsencode(tree / "images") + b"/004.caf\xe9"
    try:
        (tree / "images" / SPECIES[3]).rename(os.fsdecode(folder))
    except OSError:
        pytest.skip("this file system takes Unicode only")
    train = Cub200("train", str(tree / "images"))
    assert train.class_names[0] == "004.caf\\xe9"
    "".join([*train.class_names, train.fingerprint(), *train.verify()]).encode()


@pytest.mark.usefixtures("table")
def test_lists_may_be_in_any_order_and_of_another_system(tree):
    before = Cub200("test", str(tree))
    lines = (tree / "image_class_labels.txt").read_text().splitlines()
    (tree / "image_class_labels.txt").write_bytes("\r\n".join(lines[::-1]).encode())
    assert Cub200("test", str(tree)).fingerprint() == before.fingerprint()


@pytest.mark.usefixtures("table")
def test_default_root(tree, tmp_path, monkeypatch):
    monkeypatch.delenv("ZOO_DATA", raising=False)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    assert data_dir("cub200") == tmp_path / "cache" / "data" / "cub200"
    with pytest.raises(UserError, match=re.escape(repr(str(data_dir("cub200"))))) as error:
        Cub200("train")
    assert str(error.value).splitlines()[1] == "download it with: zoo data download cub200"
    (tmp_path / "all").mkdir()
    tree.rename(tmp_path / "all" / "cub200")
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "all"))
    assert len(Cub200("train")) == 6


@pytest.mark.usefixtures("table")
def test_built_by_name_and_read_by_workers(root):
    data = zoo.build("datasets", "cub200", split="train", root=str(root))
    copy = pickle.loads(pickle.dumps(data))
    assert copy.fingerprint() == data.fingerprint()
    loader = DataLoader(copy, batch_size=3, num_workers=1, collate_fn=list)
    batches = list(loader)
    assert [label for batch in batches for _, label in batch] == data.labels.tolist()
    assert batches[0][0][0].tobytes() == data[0][0].tobytes()
    with pytest.raises(UserError, match="roots"):
        zoo.build("datasets", "cub200", split="train", roots=str(root))


@pytest.mark.usefixtures("table")
def test_nothing_is_said_when_all_is_well(root, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train, _ = both(root)
        train.verify()
    assert capfd.readouterr() == ("", "")


# ---- what is not there


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("gone", "does not exist"),
        ("x\ny", "does not exist"),
        ("file", "is not a folder"),
        ("empty", r"nor has CUB_200_2011 in it: images.txt, .*tgz\); \[0-9\]"),
    ],
)
def test_missing(tmp_path, there, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        Cub200("train", str(tmp_path / there))
    first, second, third = str(error.value).splitlines()
    assert re.search(f"dataset.root={re.escape(repr(str(tmp_path / there)))} .*{message}", first)
    assert second.startswith("download it with: zoo data download cub200 --root ")
    assert "CUB_200_2011.tgz (1,150,585,339 bytes, MD5 97eceeb196236b17998738112f37df78" in third


@pytest.mark.parametrize("where", ["", "a\0b", "~nobody_of_that_name/x"])
def test_no_root_at_all(where):
    with pytest.raises(UserError, match=re.escape(f"dataset.root={where!r}")):
        Cub200("train", where)


def test_relative_root(root, monkeypatch):
    monkeypatch.setattr(Cub200, "table", replicas.TABLES["cub200"])
    monkeypatch.chdir(root)
    train = Cub200("train", "CUB_200_2011")
    monkeypatch.chdir("/")
    assert train[0][1] == 0


@pytest.mark.parametrize("lost", ["classes.txt", "image_class_labels.txt", "images"])
def test_half_a_tree(root, tree, lost):
    (tree / lost).rename(root / "elsewhere")
    with pytest.raises(UserError, match=rf"looks like the tree .*there is no {lost}\n"):
        Cub200("train", str(root))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_images_are_counted_and_named(root, tree, split):
    for name in TRAIN:
        (tree / "images" / name).unlink()
    (tree / "images" / TEST[0]).unlink()
    (tree / "images" / TEST[0]).mkdir()
    with pytest.raises(UserError, match=r"of 12 listed images 7 are missing") as error:
        Cub200(split, str(root))
    first, *rest = str(error.value).splitlines()
    assert all(repr(f"images/{name}") in first for name in TRAIN[:5])
    assert "and 2 more" in first
    assert len(rest) == 2
    shutil.rmtree(tree / "images" / SPECIES[101])
    with pytest.raises(UserError, match=r"of 12 listed images 9 are missing"):
        Cub200(split, str(root))


def test_other_numbers_than_in_the_paper_are_told(root):
    with pytest.warns(UserWarning, match="train: 6 images of 2 classes, .* 5,864 images of 100"):
        train = Cub200("train", str(root))
    assert train.verify() == [
        "error: 'train': 6 images of 2 classes, but published results are for 5,864 images of 100 "
        "classes",
        "error: 'test': 6 images of 2 classes, but published results are for 5,924 images of 100 "
        "classes",
    ]


@pytest.mark.filterwarnings(MISCOUNTED)
def test_too_few_classes(tree):
    for number in (3, 101, 200):
        shutil.rmtree(tree / "images" / SPECIES[number])
    with pytest.raises(UserError, match=r"lists 1 class for split train, but needs 2"):
        Cub200("train", str(tree / "images"))
    with pytest.raises(UserError, match=r"lists 0 classes for split test, but needs 1"):
        Cub200("test", str(tree / "images"))


BROKEN = [
    ("images.txt", "1 ../../secret.jpg", "invalid file names of images: 'images/../../secret.jpg'"),
    ("images.txt", "1 /etc/secret.jpg", "invalid file names of images"),
    ("images.txt", "1", "invalid file names of images: 'images/'"),
    ("images.txt", "1 a\0b.jpg", "invalid file names of images"),
    ("images.txt", f"1 {TRAIN[1]}", "list 1 images twice"),
    ("images.txt", f"99 {TRAIN[0]}", "image 99 of .* has no class"),
    ("images.txt", TRAIN[0], "images.txt', line 1: .* must begin with 1 integers"),
    ("image_class_labels.txt", "1", "line 1: '1' must begin with 2 integers"),
    ("image_class_labels.txt", "1 201", r"no name: \[201\]"),
    ("image_class_labels.txt", "1_0 3", "must begin with 2 integers"),
    ("image_class_labels.txt", "2 200", "class_labels.txt': 2 is both 200 and 3"),
    ("classes.txt", "200 another", "classes.txt': 200 is both 'another' and '200.<b>'"),
    ("images.txt", "2 another.jpg", "images.txt': 2 is both 'another.jpg' and"),
]


@pytest.mark.parametrize(("file", "line", "message"), BROKEN)
def test_broken_lists(tree, file, line, message):
    lines = (tree / file).read_text(encoding="utf-8").splitlines()
    write(tree / file, [line, *lines[1:]])
    with pytest.raises(UserError, match=message):
        Cub200("train", str(tree))


def test_undecodable_list(tree):
    (tree / "classes.txt").write_bytes(b"1 \xff\n")
    with pytest.raises(UserError, match=r"classes\.txt' cannot be read"):
        Cub200("train", str(tree))


@pytest.mark.parametrize("split", ["valid", ""])
def test_options(root, split):
    with pytest.raises(UserError, match=f"split is '{split}'"):
        Cub200(split, str(root))


@pytest.mark.usefixtures("table")
def test_links(root, tree, tmp_path):
    (tmp_path / "link").symlink_to(tree)
    train, _ = both(tmp_path / "link")
    (tree / "images" / TRAIN[0]).rename(tree / "moved.jpg")
    (tree / "images" / TRAIN[0]).symlink_to(tree / "moved.jpg")
    assert Cub200("train", str(tree)).fingerprint() == train.fingerprint()
    (tree / "moved.jpg").rename(tmp_path / "outside.jpg")
    (tree / "images" / TRAIN[0]).unlink()
    (tree / "images" / TRAIN[0]).symlink_to(tmp_path / "outside.jpg")
    with pytest.raises(UserError, match=r" 1 are missing .*links that lead out"):
        Cub200("train", str(tree))
    (tree / "images" / SPECIES[101]).rename(tmp_path / "outside")
    (tree / "images" / SPECIES[101]).symlink_to(tmp_path / "outside")
    (tree / "images" / TEST[3]).unlink()
    (tree / "images" / TEST[3]).symlink_to(TEST[3].rpartition("/")[2])
    with pytest.raises(UserError, match=r" 5 are missing"):
        Cub200("train", str(tree))


@pytest.mark.usefixtures("table")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_does_not_hang(tree):
    train = Cub200("train", str(tree))
    (tree / "images" / TRAIN[0]).unlink()
    os.mkfifo(tree / "images" / TRAIN[0])
    assert train.verify() == [f"error: {'images/' + TRAIN[0]!r}: the file is missing"]
    with pytest.raises(UserError, match=" 1 are missing"):
        Cub200("train", str(tree))


# ---- what is there


@pytest.mark.usefixtures("table")
def test_fingerprint(root, tree, tmp_path):
    train, test = both(root)
    shutil.copytree(tree, tmp_path / "copy")
    assert Cub200("train", str(tmp_path / "copy")).fingerprint() == train.fingerprint()
    prints = {train.fingerprint(), test.fingerprint()}
    photo(99, size=(80, 80)).save(tree / "images" / TRAIN[0])
    prints.add(Cub200("train", str(root)).fingerprint())
    assert Cub200("test", str(root)).fingerprint() == test.fingerprint()
    lines = (tree / "image_class_labels.txt").read_text().splitlines()
    lines[3] = "4 3"
    write(tree / "image_class_labels.txt", lines)
    prints.add(Cub200("train", str(root)).fingerprint())
    lost = Cub200("train", str(root))
    (tree / "images" / TRAIN[1]).rename(tree / "images" / SPECIES[3] / "9.jpg")
    with pytest.raises(UserError, match=r"1\.jpg': No such file"):
        lost.fingerprint()
    text = (
        (tree / "images.txt").read_text(encoding="utf-8").replace(TRAIN[1], SPECIES[3] + "/9.jpg")
    )
    (tree / "images.txt").write_text(text, encoding="utf-8")
    prints.add(Cub200("train", str(root)).fingerprint())
    assert len(prints) == 5


@pytest.fixture
def odd(tree):
    """A tree with a specimen of everything."""
    images = tree / "images"
    photo(1, "L").save(images / TRAIN[0])
    photo(1, "L").convert("RGB").save(images / TEST[0])
    photo(2, "CMYK").save(images / TRAIN[1])
    photo(3, size=(40, 31)).save(images / TRAIN[2])
    shutil.copy(images / TRAIN[2], images / TEST[4])
    shutil.copy(images / TEST[1], images / TEST[2])
    shutil.copy(images / TRAIN[3], images / TRAIN[1])
    truncate(images / TRAIN[4])
    (images / TRAIN[5]).write_bytes(b"")
    (images / TEST[5]).write_text("404 not found")
    (images / SPECIES[3] / "._x.jpg").write_bytes(b"\0\5\x16\7")
    (images / SPECIES[3] / "Thumbs.db").write_bytes(b"\0")
    return tree


@pytest.mark.usefixtures("table")
def test_survey(odd):
    train, _ = both(odd)
    found = train.survey(str(odd)).findings
    assert found[0][::2] == ("error", f"images/{TRAIN[4]}")
    assert "truncated" in found[0].what
    assert found[1] == ("error", "empty file", f"images/{TRAIN[5]}")
    assert found[2] == ("error", "not an image that Pillow reads", f"images/{TEST[5]}")
    same = "the same file "
    label = ("warning", f"{same}with another label: {'images/' + TRAIN[3]!r}", f"images/{TRAIN[1]}")
    across = ("warning", f"{same}in both splits: {'images/' + TEST[4]!r}", f"images/{TRAIN[2]}")
    within = ("note", f"{same}of one class: {'images/' + TEST[2]!r}", f"images/{TEST[1]}")
    assert found[3:6] == [label, across, within]
    assert found[6:] == [
        ("note", f"gray images (1): {'images/' + TRAIN[0]!r}", "train"),
        ("note", f"images with a side under 32 pixels (1): {'images/' + TRAIN[2]!r}", "train"),
        ("note", f"gray images (1): {'images/' + TEST[0]!r}", "test"),
        ("note", f"images with a side under 32 pixels (1): {'images/' + TEST[4]!r}", "test"),
    ]
    lines = train.verify()
    assert len(lines) == len(found)
    assert lines[1] == f"error: {'images/' + TRAIN[5]!r}: empty file"


@pytest.mark.usefixtures("table")
def test_every_mode_becomes_rgb_and_a_broken_file_is_named(odd):
    photo(2, "CMYK").save(odd / "images" / TRAIN[1])
    train, test = both(odd)
    assert [train[i][0].mode for i in range(4)] == ["RGB"] * 4
    with pytest.raises(UserError, match=r"2\.jpg' cannot be used: not an image"):
        test[5]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.usefixtures("table")
def test_limit_of_pixels(tree):
    train = Cub200("train", str(tree), max_pixels=40 * 36 - 1)
    with pytest.raises(UserError, match=r"dataset\.max_pixels="):
        train[0]
    assert sum("1,440 pixels" in line for line in train.verify()) == 12


@pytest.mark.usefixtures("table")
def test_an_interrupted_survey_ends(tree, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_looks, "_look_at", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Cub200.survey(str(tree))


@pytest.mark.usefixtures("table")
def test_construction_asks_for_no_single_file(tree, monkeypatch):
    stat, asked = os.stat, []
    monkeypatch.setattr(os, "stat", lambda path, **o: (asked.append(str(path)), stat(path, **o))[1])
    train = Cub200("train", str(tree))
    assert not [path for path in asked if path.endswith(".jpg")]
    train.fingerprint()
    assert len([path for path in asked if path.endswith(".jpg")]) == 6
