"""A run of several processes: the numbers of one process, whatever is trained, and messages."""

import importlib
import json
import os
import socket
import subprocess
import sys

import commands
import numpy as np
import pytest
import torch
from finished import run_on_photographs
from in_processes import call, runs_of
from places import ROOT
from replicas import photographs
from stops import Stops

import zoo
from zoo import UserError, checks, config, runner
from zoo.data.pipeline import _Keys
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.registry import components
from zoo.runs import identity
from zoo.runs.folder import RunFolder
from zoo.training.batchnorm import synchronise
from zoo.training.experiment import assemble

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]
SMALL = ["model.backbone.width=8", "model.embedding_size=16", "train.precision=fp32", "device=cpu"]
SMALL += ["sampler.classes=9", "sampler.per_class=3", "train.log_every=1"]  # 27 images
SGD = "optimizer={name: sgd, lr: 0.01}"  # Adam magnifies gradients that are nearly 0
QUIET = Reporter(quiet=True)


def given(output, *settings):
    """Return the settings of a run: those of SMALL, unless others are given."""
    keys = tuple(setting.split("=", 1)[0] for setting in settings)
    small = [setting for setting in SMALL if not setting.startswith(keys)]
    return [*small, *settings, f"output={output}"]


def train(output, *settings, reporter=QUIET):
    """Do a run; return its result and folder."""
    result = runner.run("ice_glyphs", given(output, *settings), reporter=reporter)
    return result, RunFolder(output / result["run"])


def losses(folder):
    return {line["iteration"]: line["loss"] for line in folder.metrics() if "loss" in line}


def assert_alike(mine, theirs, queries=2, rel=2e-3):
    """Compare two runs: the loss of each iteration, and Recall@K up to some queries."""
    (result, folder), (expected, other) = mine, theirs
    assert losses(folder) == pytest.approx(losses(other), rel=rel)
    for k, score in expected["recall"].items():
        assert round(abs(result["recall"][k] - score) * expected["queries"]) <= queries, k
    assert result["digest"] == expected["digest"]


@pytest.fixture(scope="module")
def alone(few_glyphs, tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), "train.iterations=100", SGD)


def test_a_run_ends_with_the_recall_of_one_process(alone, tmp_path):
    """With three processes; with two, torchrun starts them in another test."""
    processes = 3
    settings = ("train.iterations=100", SGD, f"train.processes={processes}")
    together = train(tmp_path, *settings)
    assert_alike(together, alone)
    assert together[0]["hardware"]["processes"] == processes


def test_it_goes_on_with_another_number_of_processes(alone, tmp_path):
    for processes, at in ((1, 30), (2, 60)):
        settings = ("train.iterations=100", SGD, f"train.processes={processes}")
        with pytest.raises(runner.InterruptedRunError, match="saved at iteration"):
            train(tmp_path, *settings, reporter=Stops(at))
    assert_alike(train(tmp_path, "train.iterations=100", SGD), alone)


VARIANTS = {
    "levels, chunks and a limit": [
        "model.backbone={name: bn_inception, levels: LMH, weights: null}",
        "model.freeze=batchnorm",
        "train.chunk_size=4",
        "train.clip_norm=0.5",
        "images={resize: 40, crop: 32}",
    ],
    "a miner and held-out classes": [
        "loss=triplet_semihard",
        "miner={name: pml.TripletMarginMiner, margin: 0.1}",
        "evaluate={ks: [1, 2], every: 3, validation: 0.2, measures: [map_at_r, nmi]}",
    ],
    "a sampler that asks the network": [
        "loss=proxy_nca",
        "sampler={name: hard_class, classes: 9, pool: 20}",
    ],
    "crops of random scale": ["images={crop: 24, random_crop: resized}"],
    "bfloat16": ["train.precision=bf16", "loss={name: arcface}"],
}


def variant(output, name):
    return given(output, *VARIANTS[name], "train.iterations=8", "optimizer={name: sgd, lr: 0.01}")


@pytest.fixture(scope="module")
def together(few_glyphs, tmp_path_factory):
    """Each variant as a run of two processes, which are started once for all."""
    output = tmp_path_factory.mktemp("together")
    configs = [config.load("ice_glyphs", variant(output / name, name)) for name in VARIANTS]
    results = dict(zip(VARIANTS, call(2, runs_of, configs), strict=True))
    return {
        name: (found, RunFolder(output / name / found["run"])) for name, found in results.items()
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_is_trained_the_numbers_are_those_of_one_process(together, tmp_path, name):
    loose = name == "bfloat16"
    result = runner.run("ice_glyphs", variant(tmp_path, name), reporter=QUIET)
    one = result, RunFolder(tmp_path / result["run"])
    assert_alike(together[name], one, queries=30 if loose else 5, rel=3e-2 if loose else 2e-3)
    for measure, score in result.get("measures", {}).items():
        assert together[name][0]["measures"][measure] == pytest.approx(score, abs=0.02)


class Four(Ranks):
    """The first of four processes."""

    def __init__(self):
        super().__init__()
        self.size = 4


def test_what_cannot_be_divided_is_one_message_before_training(tmp_path):
    few = photographs(tmp_path / "few", {"train": 9, "test": 1}, each=3, size=(40, 36))
    with pytest.raises(UserError, match="3 images cannot be divided among 4 processes"):
        next(iter(_Keys(iter_of_batches([[0, 1, 2]]), 9, 0, 1, Four())))
    for settings, said in (
        (
            "evaluate.backend=faiss",
            "evaluate.backend=faiss works with one process, and there are 4",
        ),
        (f"dataset={{name: image_folder, root: {few}}}", "3 images cannot be divided among 4"),
    ):
        checked = config.load("ice_glyphs", [*SMALL, settings, "images.resize=32"])
        with pytest.raises(UserError, match=said):
            assemble(checked, QUIET, Four())
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    with pytest.raises(UserError, match="train.sync_batchnorm=true, or model.freeze=batchnorm"):
        synchronise(network, Four(), torch.device("cpu"), allowed=False)
    synchronise(
        network.requires_grad_(False).eval()[:0], Four(), torch.device("cpu"), allowed=False
    )


def iter_of_batches(batches):
    class Batches:
        def __iter__(self):
            yield from batches

        def state_dict(self):
            return {}

    return Batches()


def test_an_image_that_one_process_cannot_read_is_one_message(tmp_path):
    photographs(tmp_path / "photos", {"train": 4, "test": 3}, each=4, size=(40, 36))
    path = sorted((tmp_path / "photos" / "train").rglob("*.*"))[0]
    path.write_bytes(path.read_bytes()[:200])
    data = f"dataset={{name: image_folder, root: {tmp_path / 'photos'}}}"
    settings = (
        data,
        "images={resize: 32}",
        "sampler={name: m_per_class, classes: 4, per_class: 2}",
    )
    with pytest.raises(UserError, match="cannot be read|truncated|not an image"):
        train(tmp_path / "runs", *settings, "train.processes=2", "train.iterations=8")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_torchrun_on_two_machines(alone, tmp_path):
    """Two launchers with a process each; only the first prints, and the second needs no folder."""
    port, nodes = free_port(), []
    for rank in range(2):
        place = tmp_path / str(rank)
        place.mkdir()
        rendezvous = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
        command += ["--master-port", str(port), "--nproc-per-node", "1", "-m", "zoo", "run"]
        settings = [*SMALL, "ice_glyphs", "train.iterations=100", SGD, "output=runs"]
        nodes.append(
            subprocess.Popen(
                [*command, *settings],
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    first, second = (node.communicate(timeout=300) for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], first[1] + second[1]
    assert "ice_glyphs" in first[0]
    assert second[0] == ""
    assert not (tmp_path / "1" / "runs").exists()
    (folder,) = map(RunFolder, (tmp_path / "0" / "runs").iterdir())
    assert_alike((folder.result(), folder), alone)


def test_a_plan_of_runs_of_two_processes(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    settings = [s for s in SMALL if not s.startswith("train.log_every")]
    arguments = (*settings, "train.iterations=4", "train.processes=2", "--seeds", "0,1", "-q")
    status, out, error = command("run", "ice_glyphs", *arguments)
    assert (status, error) == (0, "")
    assert "ice_glyphs" in out
    assert len([*tmp_path.glob("runs/*/result.json")]) == 2


def test_images_are_embedded_by_two_processes_as_by_one(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    run = run_on_photographs(tmp_path)
    (tmp_path / "photos" / "broken.png").write_bytes(b"not an image")
    for name, more in (("one", ()), ("two", ("--processes", "2"))):
        status, _, error = command("embed", run, "photos", "-o", f"{name}.npz", *more)
        assert status == 0
        assert "broken.png" in error
    one, two = np.load("one.npz"), np.load("two.npz")
    assert one["names"].tolist() == two["names"].tolist()
    assert np.allclose(one["embeddings"], two["embeddings"], atol=1e-6)
    whole = command("measure", run, "--measures", "map_at_r,nmi")
    result = json.loads((run / "result.json").read_text())
    for name in ("measures", "clustering"):
        result.pop(name)
    (run / "embeddings.npz").unlink()
    (run / "result.json").write_text(json.dumps(identity.seal(result)))
    assert (
        command("measure", run, "--measures", "map_at_r,nmi", "--processes", "2")[:2] == whole[:2]
    )


def test_the_part_on_the_page_is_a_part():
    class MyLoss(torch.nn.Module):
        def terms_of(self, anchors, gallery, labels, others):
            cosines = (
                torch.nn.functional.normalize(anchors) @ torch.nn.functional.normalize(gallery).T
            )
            same = labels[:, None] == others
            return (cosines * (~same)).square().sum(1), (~same).any(1)

        def forward(self, embeddings, labels):
            terms, valid = self.terms_of(embeddings, embeddings, labels, labels)
            return terms[valid].sum() / valid.sum().clamp_min(1)

    (code,) = commands.blocks("python", (ROOT / "docs" / "processes.md").read_text("utf-8"))
    made = {}
    exec(code, made)
    MyLoss.part = made["part"]
    checks.check_rows(checks.Subject(MyLoss))


def test_other_commands_are_not_for_torchrun(monkeypatch, command):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    status, _, error = command("embed", "run", "photos", "-o", "x.npz")
    assert (status, error.count("\n")) == (2, 1)
    assert "takes --processes instead" in error


def test_a_loss_of_a_module_is_imported_and_one_of_a_script_is_refused(tmp_path, monkeypatch):
    """Other processes have neither what this one registered, nor its notebook."""
    monkeypatch.setattr(components, "_registered", dict(components._registered))
    name = f"registering{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(REGISTERING)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    few = ("train.iterations=2", "train.processes=2", "evaluate.ks=[1]")
    result, _ = train(tmp_path / "runs", "loss=of_a_module", *few)
    assert result["plugins"] == {"losses": f"registered in {name}"}
    module.OfAModule.__module__ = "__main__"
    zoo.register("losses", "of_a_script")(module.OfAModule)
    with pytest.raises(UserError, match="one of the losses is registered in this script or note"):
        train(tmp_path / "runs", "loss=of_a_script", *few)


REGISTERING = """
import zoo
from zoo.losses.ice import ICELoss

@zoo.register("losses", "of_a_module")
class OfAModule(ICELoss):
    pass
"""
