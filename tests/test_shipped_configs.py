"""Every shipped config trains: two steps of each, with a small network."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from zoo import runner
from zoo.config import load, shipped
from zoo.progress import Reporter

SMALL = ["train.iterations=2", "model.backbone={name: convnet, width: 4}", "device=cpu"]
TRAINED = [name for name in shipped() if not name.startswith("pretrained")]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    generator = torch.Generator().manual_seed(0)
    for split, classes in (("train", 30), ("test", 3)):
        for c in range(classes):
            folder = root / split / f"{split}{c}"
            folder.mkdir(parents=True)
            for i in range(2):
                pixels = torch.randint(256, (40, 44, 3), dtype=torch.uint8, generator=generator)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    return root


@pytest.mark.parametrize("name", TRAINED)
def test_it_trains(name, photographs, tmp_path):
    settings = [*SMALL, f"output={tmp_path}"]
    if name.endswith("_folder"):
        settings += [f"dataset.root={photographs}", "images.resize=36", "images.crop=32"]
    checked = load(name, settings)
    result = runner.run(checked, reporter=Reporter(quiet=True))
    assert result["iterations"] == 2
    assert result["loss"] == checked.loss.name
    assert 0 <= result["recall"]["1"] <= 1


def test_they_are_of_both_kinds():
    assert {name.rpartition("_")[2] for name in TRAINED} == {"glyphs", "folder"}
