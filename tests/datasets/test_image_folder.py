"""ImageFolder: what counts as an image, and what a user is told of the rest."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import BIRDS

from zoo import config, registry
from zoo.base import ImageDataset
from zoo.datasets import _images
from zoo.datasets.image_folder import ImageFolder
from zoo.errors import UserError

HOSTILE = ["<script>", "a_b & 50%", "étude 鳥 🐦", "x\ny", "-rf", "$(id)", "'\"", "..x."]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ZOO_CACHE", str(folder))
    return folder


@pytest.fixture
def examined(monkeypatch):
    """The names of the files that were opened by the scan."""
    names = []
    examine = _images._examine

    def note(root, name, max_pixels):
        names.append(name)
        return examine(root, name, max_pixels)

    monkeypatch.setattr(_images, "_examine", note)
    return names


def put(path, value=0):
    """Write an image; the value decides over its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (value % 256, value // 256, 7)).save(path)


def fill(root, names, each=3):
    for n, name in enumerate(names):
        for i in range(each):
            put(root / name / f"{i}.png", n * each + i)
    return root


@pytest.fixture
def root(tmp_path):
    return fill(tmp_path / "data", ["train/a", "train/b", "test/c", "test/d"])


@pytest.fixture
def flat(tmp_path):
    return fill(tmp_path / "flat", "abcdefghij")


@pytest.fixture(params=["root", "flat"])
def either(request):
    return request.getfixturevalue(request.param)


def both(root, **options):
    return ImageFolder(str(root), "train", **options), ImageFolder(str(root), "test", **options)


def faults(data):
    """Return what verify finds, but for tiny images and few classes, as all are here."""
    usual = ("images with a side under", "a batch of ice_folder takes 12 classes")
    return [line for line in data.verify() if not any(one in line for one in usual)]


def test_train_and_test_folders(root):
    train, test = both(root)
    assert train.class_names == ["a", "b"]
    assert test.class_names == ["c", "d"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.labels.dtype == np.int64
    assert train.files == [f"train/{c}/{i}.png" for c in "ab" for i in range(3)]
    assert isinstance(train, ImageDataset)
    image, label = test[-1]
    assert (image.mode, label, type(label)) == ("RGB", 1, int)
    assert image.getpixel((0, 0)) == (11, 0, 7)
    assert train.stray == faults(train) == []
    with pytest.raises(IndexError):
        train[6]


def test_classes_are_divided(flat):
    train, test = both(flat)
    assert sorted(train.class_names + test.class_names) == list("abcdefghij")
    assert len(train.class_names) == 5
    assert len(train) == len(test) == 15
    assert train.class_names == sorted(train.class_names)
    fewer = both(flat, test_share=0.2)
    assert set(fewer[1].class_names) < set(test.class_names)
    assert len(fewer[1].class_names) == 2
    assert both(flat, split_seed=1)[1].class_names != test.class_names


def test_nested_folders_and_endings(root):
    put(root / "train/a/deep/deeper/x.JPG")
    put(root / "train/a/y.jpeg")
    put(root / "train/a/z.webp")
    train = ImageFolder(str(root), "train")
    assert {"train/a/deep/deeper/x.JPG", "train/a/y.jpeg", "train/a/z.webp"} <= set(train.files)
    assert train.labels.tolist() == [0] * 6 + [1] * 3
    assert train.stray == []


def test_hostile_class_names(tmp_path):
    fill(tmp_path, [f"{split}/{split[1]}{name}" for split in ("train", "test") for name in HOSTILE])
    train, test = both(tmp_path)
    assert train.class_names == sorted("r" + name for name in HOSTILE)
    assert test.class_names == sorted("e" + name for name in HOSTILE)
    assert test[-1][1] == len(HOSTILE) - 1
    (tmp_path / "train" / "rx\ny" / "bad.png").touch()
    with pytest.raises(UserError, match=r"rx\\ny/bad.png': empty") as error:
        ImageFolder(str(tmp_path), "train")
    assert len(str(error.value).splitlines()) == 3


def test_undecodable_class_name_can_be_written(root):
    folder = os.fsencode(root) + b"/train/caf\xe9"
    try:
        Path(os.fsdecode(folder)).mkdir()
    except OSError:
        pytest.skip("this file system takes Unicode only")
    put(Path(os.fsdecode(folder)) / "x.png")
    train = ImageFolder(str(root), "train")
    assert train.class_names == ["a", "b", "caf\\xe9"]
    "".join([*train.class_names, train.fingerprint()]).encode()
    assert train[6][1] == 2


STRAY = [".DS_Store", "._0.png", "Thumbs.db", "notes.txt", "Makefile", "figure.eps", ".hidden.png"]


def test_stray_files_are_ignored_and_named(either):
    clean, *_ = both(either)
    inside = either / clean.files[0].rpartition("/")[0]
    for name in STRAY:
        (inside / name).write_bytes(b"not an image")
    put(either / "__MACOSX/a/._0.png")
    put(either / ".git/x/0.png")
    put(either / "loose.png")
    with pytest.warns(UserWarning, match=rf"{len(STRAY) + 3} stray .* and \d+ more") as caught:
        data = ImageFolder(str(either), "train")
    assert len(caught) == 1
    prefix = inside.relative_to(either).as_posix()
    expected = [f"{prefix}/{name}" for name in STRAY] + ["__MACOSX/", ".git/", "loose.png"]
    assert sorted(data.stray) == sorted(expected)
    assert (data.files, data.fingerprint()) == (clean.files, clean.fingerprint())
    assert len(faults(data)) == len(expected)
    assert all(any(repr(name) in line for line in faults(data)) for name in expected)


def test_other_folders_beside_train_and_test(root):
    put(root / "val/a/0.png")
    put(root / "train/loose.png")
    with pytest.warns(UserWarning, match="val/"):
        assert sorted(ImageFolder(str(root), "test").stray) == ["train/loose.png", "val/"]


@pytest.mark.filterwarnings("ignore:.*stray")
def test_links_out_of_root_are_not_followed(root, tmp_path):
    put(tmp_path / "secret.png")
    (root / "train/a/out.png").symlink_to(tmp_path / "secret.png")
    (root / "train/a/gone.png").symlink_to(root / "nothing.png")
    (root / "train/a/loop").symlink_to(root / "train")
    (root / "train/a/self.png").symlink_to(root / "train/a/self.png")
    (root / "train/c").symlink_to(root / "test/c")
    (root / "train/a/in.png").symlink_to(root / "train/a/0.png")
    train = ImageFolder(str(root), "train")
    assert train.class_names == ["a", "b"]
    assert "train/a/in.png" in train.files
    assert len(train) == 7
    inside = [f"train/a/{name}" for name in ("gone.png", "loop", "out.png", "self.png")]
    assert sorted(train.stray) == [*inside, "train/c"]


def test_root_may_be_a_link_or_relative(root, tmp_path, monkeypatch):
    whole = ImageFolder(str(root), "train").fingerprint()
    (tmp_path / "link").symlink_to(root)
    assert ImageFolder(str(tmp_path / "link"), "train").fingerprint() == whole
    monkeypatch.chdir(tmp_path)
    data = ImageFolder("data", "train")
    monkeypatch.chdir("/")
    assert len(data[0]) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_does_not_hang(root):
    os.mkfifo(root / "train/a/pipe.png")
    with pytest.warns(UserWarning, match="pipe"):
        assert len(ImageFolder(str(root), "train")) == 6


def spoil(root):
    """Put four unusable files, two in each split; return their names and what they suffer from."""
    Image.effect_noise((64, 64), 100).save(root / "train/a/half.jpg")
    half = (root / "train/a/half.jpg").read_bytes()[:1000]
    (root / "train/a/half.jpg").write_bytes(half)
    (root / "train/b/empty.png").write_bytes(b"")
    (root / "test/c/text.png").write_text("404 not found")
    (root / "test/d/eps.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n")
    return {
        "train/a/half.jpg": "truncated",
        "train/b/empty.png": "empty file",
        "test/c/text.png": "not an image",
        "test/d/eps.jpg": "not an image",
    }


@pytest.mark.parametrize("split", ["train", "test"])
def test_unreadable_images_are_named_before_training(root, split):
    bad = spoil(root)
    with pytest.raises(UserError, match=r"has 4 images that cannot be used:") as error:
        ImageFolder(str(root), split)
    text = str(error.value)
    for name, why in bad.items():
        assert re.search(f"'{name}': .*{why}", text)
    assert "dataset.skip_unreadable=true" in text
    assert "object at 0x" not in text


def test_unreadable_images_can_be_skipped(root):
    clean = ImageFolder(str(root), "train").fingerprint()
    bad = spoil(root)
    with pytest.warns(UserWarning, match=r"4 unusable images left out: 'train/a/half\.jpg'"):
        train = ImageFolder(str(root), "train", skip_unreadable=True)
    assert len(train) == 6
    assert train.fingerprint() == clean
    lines = faults(train)
    assert len(lines) == 4
    for name, why in bad.items():
        assert any(repr(name) in line and why in line for line in lines)


def test_long_list_of_unreadable_images_is_cut(root):
    for i in range(25):
        (root / f"train/a/bad{i:02}.png").touch()
    with pytest.raises(UserError, match=r"25 images") as error:
        ImageFolder(str(root), "train")
    assert str(error.value).count("empty file") == 20
    assert "and 5 more" in str(error.value)


def test_class_without_usable_images_is_ignored(root):
    (root / "train/empty").mkdir()
    (root / "train/bad").mkdir()
    (root / "train/bad/0.png").touch()
    with (
        pytest.warns(UserWarning, match="1 unusable image left out: 'train/bad/0.png'"),
        pytest.warns(UserWarning, match="2 classes without images ignored: 'bad', 'empty'"),
    ):
        train = ImageFolder(str(root), "train", skip_unreadable=True)
    assert train.class_names == ["a", "b"]
    assert train.labels.max() == 1


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bomb_is_refused_and_the_limit_can_be_raised(root):
    Image.new("1", (300, 300)).save(root / "train/a/big.png")
    options = {"root": str(root), "split": "train"}
    with pytest.raises(
        UserError, match=r"'train/a/big\.png': it has 90,000 .*dataset\.max_pixels="
    ):
        ImageFolder(**options, max_pixels=89_999)
    assert len(ImageFolder(**options, max_pixels=90_000)) == 7
    # what is remembered from there does not let it through again
    with pytest.raises(UserError, match="90,000"):
        ImageFolder(**options, max_pixels=89_999)
    with pytest.warns(UserWarning, match="unusable"):
        assert len(ImageFolder(**options, max_pixels=89_999, skip_unreadable=True)) == 6


def test_file_that_breaks_later_is_named(root):
    train = ImageFolder(str(root), "train")
    (root / "train/a/1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"train/a/1\.png' cannot be used"):
        train[1]


def test_every_file_is_opened_once(either, examined):
    train, test = both(either)
    assert Counter(examined) == Counter(train.files + test.files)
    both(either)
    assert len(examined) == len(train) + len(test)


def test_changed_file_is_opened_again(root, examined):
    train, _ = both(root)
    examined.clear()
    put(root / "train/a/1.png", 99)
    os.utime(root / "train/a/1.png", ns=(1, 1))
    assert ImageFolder(str(root), "train").fingerprint() != train.fingerprint()
    assert examined == ["train/a/1.png"]
    (root / "train/a/1.png").write_bytes(b"")
    with pytest.raises(UserError, match="empty file"):
        ImageFolder(str(root), "train")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"train/a/0.png": 3}', b'{"x": [1]}', b"\xff\xfe"]
)
def test_corrupt_cache_is_no_obstacle(root, cache, examined, content):
    both(root)
    (store,) = cache.iterdir()
    store.write_bytes(content)
    examined.clear()
    train, test = both(root)
    assert Counter(examined) == Counter(train.files + test.files)


def test_interrupted_scan_goes_on(root, cache, monkeypatch):
    examine, asked, breaking = _images._examine, [], ["test/d/1.png"]

    def interrupt(root, name, max_pixels):
        asked.append(name)
        if name in breaking:
            raise KeyboardInterrupt
        return examine(root, name, max_pixels)

    monkeypatch.setattr(_images, "_examine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ImageFolder(str(root), "train")
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    asked.clear()
    breaking.clear()
    assert len(ImageFolder(str(root), "test")) == 6
    assert sorted(asked) == ["test/d/1.png", "test/d/2.png"]


def test_no_place_for_a_cache(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="ZOO_CACHE"):
        assert len(ImageFolder(str(root), "train")) == 6


def test_fingerprint_is_that_of_names_and_content(root, tmp_path):
    train, test = both(root)
    assert train.fingerprint() != test.fingerprint()
    shutil.copytree(root, tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").rglob("*.png"):
        os.utime(path, (5, 5))
    assert ImageFolder(str(tmp_path / "elsewhere"), "train").fingerprint() == train.fingerprint()
    prints = {train.fingerprint()}
    put(root / "test/c/1.png", 77)
    assert ImageFolder(str(root), "train").fingerprint() in prints
    put(root / "train/a/1.png", 77)
    prints.add(ImageFolder(str(root), "train").fingerprint())
    (root / "train/a/2.png").rename(root / "train/a/3.png")
    prints.add(ImageFolder(str(root), "train").fingerprint())
    (root / "train/b/2.png").rename(root / "train/a/2.png")
    prints.add(ImageFolder(str(root), "train").fingerprint())
    (root / "train/a").rename(root / "train/z")
    prints.add(ImageFolder(str(root), "train").fingerprint())
    (root / "train/z/0.png").unlink()
    prints.add(ImageFolder(str(root), "train").fingerprint())
    assert len(prints) == 6


def test_same_content_in_train_and_test_is_told(root):
    shutil.copy(root / "train/a/1.png", root / "test/d/copy.png")
    shutil.copy(root / "train/a/1.png", root / "train/b/copy.png")
    (data, _) = both(root)
    (line,) = faults(data)
    assert line == (
        "warning: 'train/a/1.png': the same file in both splits: 'train/b/copy.png', "
        "'test/d/copy.png'"
    )


def test_same_content_under_two_labels_is_told(root):
    shutil.copy(root / "train/a/1.png", root / "train/b/copy.png")
    (line,) = faults(ImageFolder(str(root), "train"))
    assert "the same file with another label: 'train/b/copy.png'" in line


def test_gray_and_tiny_images_are_noted(root):
    Image.new("L", (50, 50)).save(root / "train/a/gray.png")
    notes = "\n".join(ImageFolder(str(root), "train").verify())
    assert "note: 'train': gray images (1): 'train/a/gray.png'" in notes
    assert "note: 'test': images with a side under 32 pixels (6)" in notes


@pytest.mark.parametrize(
    ("folders", "train", "test"), [(2, 1, 1), (5, 3, 2), (22, 11, 11), (23, 12, 11), (24, 12, 12)]
)
def test_verify_notes_too_few_classes_for_the_shipped_configs(tmp_path, folders, train, test):
    root = fill(tmp_path / "few", [f"{i:02}" for i in range(folders)], each=1)
    notes = [one for one in ImageFolder.survey(str(root)).findings if "ice_folder" in one.what]
    if not 2 <= train < 12:
        assert notes == []
        return
    (note,) = notes
    assert (note.severity, note.where) == ("note", "train")
    assert note.what == (
        f"{train} training classes and {test} for testing: a batch of ice_folder takes 12 classes, "
        f"so add sampler.classes={train} or less to its command"
    )
    sampler = config.load("ice_folder", ["dataset.root=x"]).sampler
    labels, given = ImageFolder(str(root), "train").labels, dict(sampler.arguments)
    with pytest.raises(UserError, match=f"the data has {train}; set sampler.classes to at most"):
        registry.build("samplers", sampler.name, labels=labels, seed=0, **given)
    given["classes"] = train
    with pytest.warns(UserWarning, match="fewer than sampler.per_class=5"):
        registry.build("samplers", sampler.name, labels=labels, seed=0, **given)


def test_verify_refuses_what_a_run_refuses(root):
    (root / "train").rename(root / "Train")
    (root / "test").rename(root / "Test")
    lines = "\n".join(str(one) for one in ImageFolder.survey(str(root)).findings)
    assert "has a folder Train/, which counts as a class; is it train/?" in lines
    assert "has 1 class with images for split train ('Train'), needed: at least 2" in lines


def test_verify_tells_of_a_class_without_images(root):
    (root / "train/nobody").mkdir()
    lines = ImageFolder(str(root), "train").verify()
    assert "warning: 'nobody': a class without usable images" in lines


@contextmanager
def unnoticed(root, cache):
    """Let what is remembered have the status of the files after the block, as if it was before.

    No program can set the time of the status back; a damaged disk need not.
    """
    (store,) = cache.glob("scan-*.json")
    yield
    remembered = json.loads(store.read_bytes())
    for name, seen in remembered.items():
        seen[2] = (root / name).stat().st_ctime_ns
    store.write_text(json.dumps(remembered))


def test_a_change_that_hides_its_size_and_time_is_noticed(root, examined):
    """The status of the file, which nobody can set back, tells."""
    file = root / "train/a/1.png"
    put(file, 40)
    train = ImageFolder(str(root), "train")
    examined.clear()
    before = file.stat()
    put(file, 41)
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ImageFolder(str(root), "train").fingerprint() != train.fingerprint()
    assert examined == ["train/a/1.png"]
    put(file, 40)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ImageFolder(str(root), "train").fingerprint() == train.fingerprint()


def test_verify_tells_of_a_change_that_nothing_shows(root, cache):
    file = root / "train/a/1.png"
    put(file, 40)
    train = ImageFolder(str(root), "train")
    before = file.stat()
    with unnoticed(root, cache):
        put(file, 41)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ImageFolder(str(root), "train").fingerprint() == train.fingerprint()
    (line,) = faults(train)
    assert line.startswith("warning: 'train/a/1.png': the content has changed since a run read it")
    assert ImageFolder(str(root), "train").fingerprint() != train.fingerprint()
    assert not faults(train)


def test_a_change_that_shows_is_no_fault(root):
    train = ImageFolder(str(root), "train")
    put(root / "train/a/1.png", 99)
    assert not faults(train)


COMPOSED, APART = "Caf\u00e9", "Cafe\u0301"


@pytest.mark.parametrize(
    ("one", "other", "severity"),
    [
        (f"train/{COMPOSED}", f"test/{APART}", "error"),
        (f"train/{COMPOSED}", f"train/{APART}", "warning"),
        ("train/Robin", "test/robin", "warning"),
        ("test/Robin", "test/robin", "warning"),
        ("train/Great  tit", "test/great tit", "warning"),
        ("train/Stra\u00dfe", "test/STRASSE", "warning"),
        (f"train/{COMPOSED}", f"test/{APART.upper()}", "warning"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*one class under several names")
def test_one_class_in_two_spellings_is_told(root, one, other, severity):
    put(root / one / "0.png", 50)
    put(root / other / "0.png", 51)
    if not (root / one).is_dir() or (root / one).samefile(root / other):
        pytest.skip("the file system knows no two names")
    data, _ = both(root)
    (line,) = faults(data)
    assert line.startswith(f"{severity}: ")
    assert ": one class under several names? " in line
    if APART in other:
        assert "'Caf\\xe9' in train" in line
        assert "'Cafe\\u0301' in t" in line


def test_one_class_in_two_spellings_warns_a_run_if_it_is_in_both_splits(root):
    put(root / "train/robin/0.png", 50)
    put(root / "train/ROBIN/0.png", 51)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(root)
    put(root / "test/Robin/0.png", 52)
    with pytest.warns(
        UserWarning, match=r"'ROBIN' in train and 'robin' in train and 'Robin' in te"
    ):
        ImageFolder(str(root), "test")


def test_one_class_in_two_forms_of_unicode_warns_a_run_within_a_split_too(root):
    put(root / "test" / COMPOSED / "0.png", 50)
    put(root / "test" / APART / "0.png", 51)
    if len({path.name for path in (root / "test").iterdir() if path.name.startswith("Caf")}) < 2:
        pytest.skip("the file system knows no two names")
    with pytest.warns(UserWarning, match="one class under several names"):
        ImageFolder(str(root), "test")


def test_verify_reads_what_looks_unchanged(root, cache):
    train = ImageFolder(str(root), "train")
    file = root / "train/a/1.png"
    before = file.stat()
    with unnoticed(root, cache):
        file.write_bytes(bytes(before.st_size))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(ImageFolder(str(root), "train")) == len(train)  # it does look unchanged
    (line,) = faults(train)
    assert line == "error: 'train/a/1.png': not an image that Pillow reads"
    with pytest.raises(UserError, match="not an image"):
        ImageFolder(str(root), "train")


def test_verify_sees_what_happened_since(root):
    train = ImageFolder(str(root), "train")
    (root / "test/c/1.png").write_bytes(b"")
    assert faults(train) == ["error: 'test/c/1.png': empty file"]
    shutil.rmtree(root / "test")
    assert ["but not the other" in line for line in faults(train)] == [True]


def test_pickles(root):
    train = ImageFolder(str(root), "train")
    copy = pickle.loads(pickle.dumps(train))
    assert copy.fingerprint() == train.fingerprint()
    assert copy[0][0].tobytes() == train[0][0].tobytes()


@pytest.mark.parametrize("there", ["", "/", "no such\nfolder", "~nobody_of_that_name/x", "file"])
def test_missing_root(tmp_path, monkeypatch, there):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    if there == "/":
        there = str(tmp_path / "gone")
    with pytest.raises(UserError, match=r"dataset\.root=.*set it to .*train/<class>"):
        ImageFolder(there, "train")


@pytest.mark.parametrize("missing", ["train", "test"])
def test_half_a_layout(root, missing):
    shutil.rmtree(root / missing)
    with pytest.raises(UserError, match=r"but not the other of train/ and test/.*dataset\.root"):
        ImageFolder(str(root), "train")


def test_class_in_both_splits(root):
    put(root / "test/b/0.png")
    with pytest.raises(UserError, match=r"has 1 class both in train/ and in test/: 'b'; keep"):
        ImageFolder(str(root), "test")


def test_too_few_classes(tmp_path):
    with pytest.raises(UserError, match=r"has 0 classes .* needed: at least 2"):
        ImageFolder(str(tmp_path), "train")
    fill(tmp_path, ["a"])
    with pytest.raises(UserError, match=r"has 1 class with .*'a'.* needed: at least 2"):
        ImageFolder(str(tmp_path), "train")
    fill(tmp_path, "ab")
    with pytest.raises(UserError, match=r"has 1 class with"):
        ImageFolder(str(tmp_path), "train")
    fill(tmp_path, "abc")
    train, test = both(tmp_path)
    assert (len(train.class_names), len(test.class_names)) == (2, 1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_all_that_is_wrong_is_told_at_once(tmp_path, split):
    fill(tmp_path, ["train/a"])
    (tmp_path / "train/a/x.png").touch()
    (tmp_path / "test").mkdir()
    with pytest.raises(UserError) as error:
        ImageFolder(str(tmp_path), split)
    layout = "a folder that holds train/<class>/*.jpg and test/<class>/*.jpg, or <class>/*.jpg"
    assert str(error.value).splitlines() == [
        f"{str(tmp_path)!r} has 1 class with images for split train ('a'), needed: at least 2",
        f"{str(tmp_path)!r} has 0 classes with images for split test, needed: at least 1; "
        f"set dataset.root to {layout}, whose classes are then divided",
        f"{str(tmp_path)!r} has 1 image that cannot be used:",
        "  'train/a/x.png': empty file",
        "delete them, or set dataset.skip_unreadable=true to leave them out",
    ]
    shutil.rmtree(tmp_path / "test")
    put(tmp_path / "train/loose.png")
    with (
        pytest.warns(UserWarning, match=r"1 stray file or folder ignored: 'train/loose\.png'"),
        pytest.raises(UserError) as error,
    ):
        ImageFolder(str(tmp_path), split)
    assert len(str(error.value).splitlines()) == 5


def test_what_is_wrong_with_the_other_split_alone_is_no_matter(tmp_path):
    """A network is evaluated as it is without a class to train on."""
    fill(tmp_path, ["train/a", "test/b"])
    assert len(ImageFolder(str(tmp_path), "test")) == 3
    with pytest.raises(UserError, match="for split train"):
        ImageFolder(str(tmp_path), "train")


@pytest.mark.parametrize("share", [-0.1, 0.0, 1.0, float("nan")])
def test_options(root, share):
    with pytest.raises(UserError, match="'valid'"):
        ImageFolder(str(root), "valid")
    with pytest.raises(UserError, match=r"dataset\.test_share"):
        ImageFolder(str(root), "train", test_share=share)


def test_nothing_is_said_when_all_is_well(either, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(either)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.skipif(not BIRDS.is_dir(), reason="the birds are not here")
def test_birds():
    train, test = both(BIRDS)
    assert (len(train), len(train.class_names)) == (3428, 58)
    assert (len(test), len(test.class_names)) == (2474, 42)
    assert train.stray == []
    assert [line.split(" (")[0] for line in train.verify()] == ["note: 'train': gray images"]
    assert train[0][0].size == (128, 128)


@pytest.mark.parametrize(
    "seen", [["1", 1, 1, "d"], [1, 1, "1", "d"], [1, 1, 1, 5], [1, 1, 1, None], [1], {}, 5, "abcd"]
)
def test_what_is_remembered_in_other_types_is_forgotten(seen, tmp_path, cache):
    root = fill(tmp_path / "photos", ["a", "b", "c", "d"])
    options = {"split": "train", "root": str(root)}
    before = ImageFolder(**options).fingerprint()
    (store,) = cache.glob("scan-*.json")
    kept = json.loads(store.read_text())
    first = next(iter(kept))
    store.write_text(json.dumps(kept | {first: seen}))
    assert ImageFolder(**options).fingerprint() == before
    assert json.loads(store.read_text()) == kept
    for text in ("[" * 100_000, "[]", "5", ""):
        store.write_text(text)
        assert ImageFolder(**options).fingerprint() == before
