"""Every shipped config trains: two steps of each, with a small network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from zoo import runner
from zoo.config import load, shipped
from zoo.progress import Reporter

SMALL = ["train.iterations=2", "model.backbone={name: convnet, width: 4}", "device=cpu"]
TRAINED = [name for name in shipped() if not name.startswith(("pretrained", "ablation/"))]


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
    checked = load(name, [*SMALL, f"output={tmp_path}", *stand_ins(name, photographs)])
    result = runner.run(checked, reporter=Reporter(quiet=True))
    assert result["iterations"] == 2
    assert result["loss"] == checked.loss.name
    assert 0 <= result["recall"]["1"] <= 1


def stand_ins(name, photographs):
    """Return what to set for data that is not at hand: photographs for the three benchmarks."""
    kind = name.rpartition("_")[2]
    if kind == "glyphs":
        return []
    settings = ["images.resize=36", "images.crop=32"]
    if kind == "folder":
        return [*settings, f"dataset.root={photographs}"]
    settings += [f"dataset={{name: image_folder, root: {photographs}}}", "model.embedding_size=8"]
    if name.startswith(("cce", "proxy_nca")):
        return [*settings, "sampler.batch_size=12"]
    return [*settings, "sampler.classes=6"]


def test_they_are_of_all_kinds():
    kinds = {name.rpartition("_")[2] for name in TRAINED}
    assert kinds == {"glyphs", "folder", "cub", "cars", "sop"}


TABLE = Path(__file__).resolve().parent.parent.parent / "shared" / "paper" / "tables.yaml"


@pytest.mark.skipif(not TABLE.is_file(), reason="the paper's tables are not at hand")
def test_every_row_of_table_3_is_there_with_the_paper_s_numbers():
    rows = yaml.safe_load(TABLE.read_text("utf-8"))["table3"]
    names = {"cub": "cub200", "cars": "cars196", "sop": "sop"}
    for row, numbers in rows["rows"].items():
        for short, key in names.items():
            paper = load(f"{row}_{short}").paper
            assert (paper.row, paper.dataset) == (numbers["title"], key)
            wanted = dict(zip(rows["columns"][key], numbers[key], strict=True))
            assert dict(paper.recall) == wanted, row
