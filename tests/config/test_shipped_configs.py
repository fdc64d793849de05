"""Every shipped config trains, for two steps: those of Table 3 on replicas of the benchmarks.

Those on characters do in tests/training/test_resumed_methods.py.
"""

from __future__ import annotations

import pytest
import replicas
import yaml
from places import PAPER as TABLE

import zoo
from zoo import registry, runner
from zoo.base import Count
from zoo.config import load, shipped
from zoo.progress import Reporter

pytestmark = pytest.mark.usefixtures("few_glyphs")

SHORT = {"cub": "cub200", "cars": "cars196", "sop": "sop"}  # at the end of a config's name
SINGLE = [name for name in shipped() if not name.startswith("ablation/")]
BENCHMARKS = [name for name in SINGLE if name.rpartition("_")[2] in SHORT]
OTHERS = [name for name in SINGLE if name not in BENCHMARKS]
NEEDED = {name: ["dataset.root=photographs"] for name in OTHERS if name.endswith("_folder")}
AT_ONCE = ("ice_", "pretrained_glyphs")  # in the fast tests too


def tried():
    """Yield the names of the configs to train with; most are slow, since each is a run."""
    for name in OTHERS:
        if name.startswith(AT_ONCE):
            yield name
        elif name.endswith("_folder"):
            yield pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory):
    """Six classes to train and two to test of each, of two images, where they are looked for."""
    data = tmp_path_factory.mktemp("data")
    numbers = {"cub200": (*range(95, 101), 101, 200), "cars196": (*range(93, 99), 99, 196)}
    replicas.cub(data / "cub200" / "CUB_200_2011", {n: f"{n:03}.x" for n in numbers["cub200"]}, 2)
    replicas.cars(data / "cars196", numbers["cars196"], 2)
    products = {"train": range(1, 7), "test": range(11319, 11321)}
    replicas.sop(
        data / "sop" / "Stanford_Online_Products",
        {split: [(n, 1, "lamp", n, 2) for n in some] for split, some in products.items()},
    )
    gray = next((data / "sop").rglob("1_0.JPG"))
    replicas.save_photo(gray, 1, "L")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_DATA", str(data))
        for name in SHORT.values():
            table = {"train": Count(12, 6), "test": Count(4, 2)}
            patch.setattr(registry.load("datasets", name), "table", table)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_row_of_table_3_trains_and_is_evaluated(name, tmp_path):
    """With the data set and the backbone that it names, but small images and random weights."""
    small = ["model.backbone.weights=null", "images.resize=36", "images.crop=32", "device=cpu"]
    if not name.startswith("pretrained"):
        small += ["train.iterations=2", "model.embedding_size=8"]
        small += {
            "shuffle": ["sampler.batch_size=12"],
            "m_per_class": ["sampler.classes=6", "sampler.per_class=2"],
            "hard_class": ["sampler.classes=6"],
        }[load(name).sampler.name]
    config = load(name, [*small, f"output={tmp_path}"])
    assert config.dataset.name == SHORT[name.rpartition("_")[2]]
    assert config.model.backbone.name == "bn_inception"
    result = runner.run(config, reporter=Reporter(quiet=True))
    assert result["iterations"] == (0 if name.startswith("pretrained") else 2)
    assert result["dataset"]["images"] == 4
    assert [int(k) for k in result["recall"]] == list(config.evaluate.ks)
    assert all(0 <= value <= 1 for value in result["recall"].values())


def test_there_are_twelve_rows_on_three_data_sets():
    assert len(BENCHMARKS) == 36


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    return replicas.photographs(root, {"train": 30, "test": 3}, each=3, size=(44, 40))


@pytest.mark.parametrize("name", tried())
def test_it_trains(name, photographs, tmp_path):
    small = ["model.backbone={name: convnet, width: 4}", "device=cpu", f"output={tmp_path}"]
    if name.endswith("_folder"):
        small += ["images.resize=36", "images.crop=32", f"dataset.root={photographs}"]
    trained = not name.startswith("pretrained")
    if trained:
        small += ["train.iterations=2"]
    config = load(name, small)
    result = runner.run(config, reporter=Reporter(quiet=True))
    assert result["iterations"] == 2 * trained
    assert result["loss"] == (config.loss.name if trained else None)
    assert 0 <= result["recall"]["1"] <= 1


LOSSES = [*zoo.names("losses"), "pretrained"]


@pytest.mark.parametrize("data", ["glyphs", "folder"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_config_with_the_batches_that_it_is_for(name, data):
    config = load(f"{name}_{data}", NEEDED.get(f"{name}_{data}", []))
    assert config.dataset.name == {"glyphs": "glyphs", "folder": "image_folder"}[data]
    if name == "pretrained":
        assert config.train.iterations == 0
        return
    assert config.loss.name == name
    wanted = registry.component("losses", name).facts["sampler"]
    if (name, data) == ("npair_mc", "folder"):  # few classes: hard ones among them are most of them
        wanted = "m_per_class"
    if (name, data) == ("proxy_nca_pp", "glyphs"):  # many classes: the config says why
        wanted = "shuffle"
    assert config.sampler.name == wanted


def test_there_is_one_for_each_loss_and_the_network_as_it_is():
    levels = {"ice_lmh_folder", "rll_lmh_folder"}  # of the networks with three embeddings
    kinds = ("miners", "samplers", "backbones")  # that a paper is about
    parts = {f"{name}_glyphs" for kind in kinds for name in zoo.names(kind)}
    wanted = {f"{name}_{data}" for name in LOSSES for data in ("glyphs", "folder")}
    assert wanted | levels <= set(OTHERS) <= wanted | levels | parts


def test_they_are_of_all_kinds():
    kinds = {name.rpartition("_")[2] for name in shipped()}
    assert kinds == {"glyphs", "folder", *SHORT}


@pytest.mark.skipif(not TABLE.is_file(), reason="the paper's tables are not at hand")
def test_every_row_of_table_3_is_there_with_the_paper_s_numbers():
    rows = yaml.safe_load(TABLE.read_text("utf-8"))["table3"]
    for row, numbers in rows["rows"].items():
        for short, key in SHORT.items():
            paper = load(f"{row}_{short}").paper
            assert (paper.row, paper.dataset) == (numbers["title"], key)
            wanted = dict(zip(rows["columns"][key], numbers[key], strict=True))
            assert dict(paper.recall) == wanted, row
