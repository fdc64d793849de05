"""Runs of plugins that are not here any more: networks load, and what is needed is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from replicas import photographs

pytestmark = pytest.mark.slow

COMPONENTS = {"losses": "Loss", "miners": "Miner", "samplers": "Batches", "datasets": "Folder"}
COMPONENTS |= {"backbones": "Net"}
PLUGIN = """
import importlib

import torch

from zoo import registry
from zoo.base import Preprocess

Folder = type("Folder", (registry.load("datasets", "image_folder"),), {})
Batches = type("Batches", (registry.load("samplers", "m_per_class"),), {})
Miner = type("Miner", (registry.load("miners", "batch_hard"),), {})
Loss = type("Loss", (registry.load("losses", "triplet_semihard"),), {"mined": True})


class Net(torch.nn.Module):
    preprocess = Preprocess()

    def __init__(self):
        super().__init__()
        self.feature_dims = [4]
        self.layer = torch.nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return [self.layer(images)]
"""
TRAIN = """
import sys

import zoo
from zoo.progress import Reporter

photos, output = sys.argv[1:]


@zoo.register("losses", "of_a_notebook")
class Loss(zoo.registry.load("losses", "ice")):
    pass


def run(name, *settings, backbone="convnet"):
    few = ["images={resize: 32, crop: 32}", "model.embedding_size=8", "train.iterations=2"]
    few += ["sampler.classes=4", "sampler.per_class=2", "device=cpu", f"name={name}"]
    few += [f"dataset.root={photos}", f"output={output}", f"model.backbone={backbone}"]
    zoo.runner.run("ice_folder", [*few, *settings], reporter=Reporter(quiet=True))


run("trained", "loss=their_losses", "miner=their_miners", "sampler.name=their_samplers")
run("notebook", "loss=of_a_notebook")
run("images", "dataset.name=their_datasets")
run("network", backbone="their_backbones")
"""
USE = """
import json
import sys

import numpy as np

import zoo

runs, = sys.argv[1:]


def outcome(use, *arguments):
    try:
        use(*arguments)
    except zoo.UserError as error:
        return str(error)
    return "done"


def use(name):
    model = zoo.load(zoo.runs.RunFolder.find(name, runs).path)
    assert model(np.zeros((40, 40, 3), np.uint8)).shape == (8,)
    return model


def embed_test(name):
    use(name).embed_test(zoo.progress.Reporter(quiet=True))


found = {name: {f.__name__: outcome(f, name) for f in (use, embed_test)}
         for name in ("trained", "notebook", "images", "network")}
print(json.dumps(found))
"""


def python(code, *arguments, plugin=None):
    """Run code in a process that sees the plugin, or does not."""
    there = {**os.environ, "PYTHONPATH": str(plugin or "")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=there, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """An installed distribution with a component of each kind."""
    site = tmp_path_factory.mktemp("site")
    (site / "theirs.py").write_text(PLUGIN)
    about = site / "theirs-0.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 0.3\n")
    groups = [f"[zoo.{kind}]\ntheir_{kind} = theirs:{cls}\n" for kind, cls in COMPONENTS.items()]
    (about / "entry_points.txt").write_text("\n".join(groups))
    return site


@pytest.fixture(scope="module")
def runs(plugin, tmp_path_factory):
    """Runs that were trained with the plugin in sight."""
    here = tmp_path_factory.mktemp("trained")
    photographs(here / "photos", {"train": 4, "test": 3}, each=4, size=(40, 36))
    python(TRAIN, here / "photos", here / "runs", plugin=plugin)
    return here / "runs"


@pytest.fixture(scope="module")
def found(runs):
    """What comes of each run in a process without the plugin."""
    return json.loads(python(USE, runs))


@pytest.mark.parametrize("name", ["trained", "notebook"])
def test_what_a_network_was_trained_with_need_not_be_there(found, name):
    assert found[name] == {"use": "done", "embed_test": "done"}


def test_the_images_are_needed_only_where_they_are_looked_at(found):
    assert found["images"]["use"] == "done"
    said = found["images"]["embed_test"]
    assert (
        "its data set 'their_datasets' is not available; it comes from theirs 0.3: install" in said
    )


def test_a_backbone_that_is_missing_is_named_with_its_package(found):
    for said in found["network"].values():
        assert (
            "its backbone 'their_backbones' is not available; it comes from theirs 0.3: install"
            in said
        )
        assert "\n" not in said


def test_with_the_plugin_all_of_them_load(runs, plugin):
    found = json.loads(python(USE, runs, plugin=plugin))
    assert {said for run in found.values() for said in run.values()} == {"done"}


def test_a_run_from_before_plugins_were_recorded(command, runs, tmp_path):
    (folder,) = runs.glob("network-*")
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("config.yaml", "checkpoint.pt"):
        (copy / name).write_bytes((folder / name).read_bytes())
    status, _, said = command("embed", copy, tmp_path, "-o", tmp_path / "x.npz")
    assert status == 2
    assert "install its package, or import the module that registers it" in said


def test_commands_need_no_plugin_of_the_training(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained, notebook = (next(runs.glob(f"{name}-*")) for name in ("trained", "notebook"))
    photos = runs.parent / "photos"
    for line in (
        ("embed", trained, photos, "-o", "x.npz", "-q"),
        ("measure", trained, notebook),
        ("compare", trained, notebook),
        ("leaderboard", runs),
    ):
        status, _, said = command(*line)
        assert status == 0, said


def test_the_report_has_a_gallery(command, runs, tmp_path):
    pytest.importorskip("plotly")
    pytest.importorskip("sklearn")
    pages = tmp_path / "report"
    status, _, said = command("report", runs, "-o", pages, "--no-tsne")
    assert status == 0, said
    (trained,) = pages.rglob("trained-*.html")
    assert "<img" in trained.read_text("utf-8")
    (images,) = pages.rglob("images-*.html")
    assert "<img" not in images.read_text("utf-8")
    assert "it comes from theirs 0.3: install that package" in images.read_text("utf-8")
