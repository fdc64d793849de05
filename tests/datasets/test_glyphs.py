"""Glyphs: the same for everyone, no class twice, and rendered once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from zoo.base import ImageDataset
from zoo.datasets import glyphs
from zoo.datasets.glyphs import Glyphs
from zoo.errors import UserError

PROGRAM = """
from zoo.datasets.glyphs import Glyphs
print(Glyphs("train").fingerprint(), Glyphs("test").fingerprint())
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A cache that two processes wrote at once, and what each of them printed."""
    folder = tmp_path_factory.mktemp("cache")
    # Old matplotlib uses what new pyparsing deprecates, which is not ours to mend.
    strict = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *strict, "-c", PROGRAM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [
        subprocess.Popen(command, env={**os.environ, "ZOO_CACHE": str(folder)}, **pipes)
        for _ in range(2)
    ]
    return folder, [process.communicate() for process in both]


@pytest.fixture(autouse=True)
def cache(rendered, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(rendered[0]))
    return rendered[0]


@pytest.fixture(scope="module")
def splits(rendered):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(rendered[0]))
        patch.setattr(glyphs, "_draw_all", None)  # they come from the cache
        return {split: Glyphs(split) for split in ("train", "test")}


@pytest.mark.slow
def test_two_processes_at_once(rendered, splits):
    folder, printed = rendered
    prints = " ".join(data.fingerprint() for data in splits.values())
    assert [out for out, _ in printed] == [prints + "\n"] * 2
    assert all("rror" not in err for _, err in printed)  # a slow machine tells how far it is
    assert [path.suffix for path in folder.iterdir()] == [".npz"]


def test_numbers(splits):
    classes = [len(data.class_names) for data in splits.values()]
    assert 0 <= classes[0] - classes[1] <= 1
    assert sum(classes) == pytest.approx(2323, abs=40)
    assert sum(map(len, splits.values())) == pytest.approx(27014, abs=500)


def test_contract(splits):
    for data in splits.values():
        assert isinstance(data, ImageDataset)
        assert data.images.shape == (len(data), 1, 32, 32)
        assert data.images.dtype == torch.uint8
        assert data.labels.dtype == np.int64
        assert (np.unique(data.labels) == np.arange(len(data.class_names))).all()
        assert data.verify() == []
        image, label = data[-1]
        assert (image.mode, image.size) == ("L", (32, 32))
        assert type(label) is int
        assert (np.asarray(image) == data.images[-1, 0].numpy()).all()
        assert label == len(data.class_names) - 1
    with pytest.raises(IndexError):
        splits["train"][len(splits["train"])]


def test_classes(splits):
    names = [name for data in splits.values() for name in data.class_names]
    assert len(set(names)) == len(names)
    assert "U+0041 LATIN CAPITAL LETTER A" in names
    assert not any(name[7:] == "CYRILLIC CAPITAL LETTER A" for name in names)
    assert not any(name[7:] == "GREEK CAPITAL LETTER ALPHA" for name in names)
    for name in names:
        character = chr(int(name.split()[0][2:], 16))
        assert unicodedata.category(character)[0] not in "ZCM"
        assert name.split(maxsplit=1)[1] == unicodedata.name(character)


def test_no_image_twice_within_or_between_classes(splits):
    images = [i.numpy().tobytes() for data in splits.values() for i in data.images]
    assert len(set(images)) == len(images)
    for data in splits.values():
        assert np.bincount(data.labels).min() >= 6
        assert np.bincount(data.labels).max() <= 16
        assert data.images.flatten(1).max(dim=1).values.min() > 0


def test_no_glyph_is_cut_off(splits):
    """Each is found in a rendering on a canvas four times as large, with the same ink."""
    data = splits["train"]
    tight = torch.cat([data.images[:, 0, [0, -1]], data.images[:, 0, :, [0, -1]].mT], dim=1)
    touching = tight.flatten(1).any(dim=1).nonzero().flatten().tolist()
    fonts = [
        ImageFont.truetype(str(face), 20, layout_engine=ImageFont.Layout.BASIC)
        for face in glyphs._find_faces()
    ]
    for i in [*touching, *range(0, len(data), 500)]:
        character = chr(int(data.class_names[data.labels[i]].split()[0][2:], 16))
        found = []
        for font in fonts:
            canvas = Image.new("L", (128, 128))
            ImageDraw.Draw(canvas).text((64, 64), character, 255, font, anchor="ls")
            found.append(np.asarray(canvas.crop(canvas.getbbox())).tobytes())
        image = data[i][0]
        assert np.asarray(image.crop(image.getbbox())).tobytes() in found


def test_fingerprint(splits):
    a, b = splits["train"], splits["test"]
    assert a.fingerprint() != b.fingerprint()
    assert pickle.loads(pickle.dumps(a)).fingerprint() == a.fingerprint()
    changed = pickle.loads(pickle.dumps(a))
    changed.images[5, 0, 3, 3] ^= 1
    relabelled = pickle.loads(pickle.dumps(a))
    relabelled.labels[0] = 1
    assert len({a.fingerprint(), changed.fingerprint(), relabelled.fingerprint()}) == 3


def few(faces):
    """Stand in for the drawing of all glyphs, which takes seconds."""
    codes, counts = np.arange(65, 69), np.full(4, 6)
    return glyphs._Glyphs(
        codes, counts, np.arange(24, dtype=np.uint8)[:, None, None].repeat(32, 1).repeat(32, 2)
    )


@pytest.mark.parametrize("content", [b"", b"rubbish", None])
def test_corrupt_cache_is_drawn_again(tmp_path, monkeypatch, cache, content):
    whole = next(cache.iterdir())
    half = whole.read_bytes()[: whole.stat().st_size // 2] if content is None else content
    (tmp_path / whole.name).write_bytes(half)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(glyphs, "_draw_all", few)
    assert len(Glyphs("train")) == 12
    monkeypatch.setattr(glyphs, "_draw_all", None)
    assert len(Glyphs("test")) == 12
    assert [path.name for path in tmp_path.iterdir()] == [whole.name]


def test_no_place_for_a_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(glyphs, "_draw_all", few)
    with pytest.warns(UserWarning, match="ZOO_CACHE"):
        assert len(Glyphs("train")) == 12


def test_cache_is_not_that_of_another_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(glyphs, "_draw_all", few)
    Glyphs("train")
    monkeypatch.setattr(glyphs, "_RECIPE", glyphs._RECIPE + 1)
    Glyphs("train")
    monkeypatch.setattr(glyphs.PIL, "__version__", "99")
    Glyphs("train")
    assert len(list(tmp_path.iterdir())) == 3


def test_errors(monkeypatch):
    with pytest.raises(UserError, match="'valid'"):
        Glyphs("valid")
    monkeypatch.setattr(glyphs, "_FACES", (*glyphs._FACES, "Nowhere.ttf"))
    with pytest.raises(UserError, match=r"Nowhere\.ttf; install matplotlib"):
        Glyphs("train")
