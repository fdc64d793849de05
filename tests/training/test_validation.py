"""Runs that choose on held-out classes, and look at the test classes once."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from places import TESTS
from torch import nn

import zoo
from zoo import UserError, runner
from zoo.config import load
from zoo.datasets.glyphs import Glyphs
from zoo.evaluate import Recall
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training import experiment as training_experiment
from zoo.training import measure
from zoo.training import step as training_step
from zoo.training.chosen import Chosen

QUIET = Reporter(quiet=True)
pytestmark = pytest.mark.usefixtures("few_glyphs")

SMALL = [
    "model.backbone.width=4",
    "model.embedding_size=16",
    "sampler.classes=8",
    "train.iterations=12",
    "train.checkpoint_every=5",
    "train.log_every=100",
    "optimizer={name: sgd, lr: 30}",  # so large that the best iterate is not the last
    "schedule=constant",
    "device=cpu",
    "dataset=few",
    "evaluate.validation=0.25",
    "evaluate.every=2",
]


class Few(Glyphs):
    """Some of the glyphs, to be quick; it knows which images of the test split were looked at."""

    looked_at: list[int]
    open = True

    def __init__(self, split):
        super().__init__(split)
        few = self.labels < 40
        self.labels, self.class_names = self.labels[few], self.class_names[:40]
        self.pixels = self.images[torch.from_numpy(few)]
        del self.images
        if split == "test":
            type(self).looked_at = []

    def __getitem__(self, index):
        if self.split == "test":
            assert type(self).open, "the test split is looked at before the end"
            type(self).looked_at.append(index)
        from PIL import Image

        return Image.fromarray(self.pixels[index, 0].numpy()), int(self.labels[index])

    def fingerprint(self):
        return f"few {self.split}"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("datasets", "few")(Few)
    monkeypatch.setattr(Few, "open", True)


def config(tmp_path, *more):
    settings = [*SMALL, f"output={tmp_path}", *more]
    return load("ice_glyphs", list({s.split("=")[0]: s for s in settings}.values()))


def run(tmp_path, *more, reporter=QUIET):
    return runner.run(config(tmp_path, *more), reporter=reporter)


def folder(tmp_path, *more):
    return RunFolder(tmp_path / config(tmp_path, *more).run_name())


def measured(tmp_path, *more):
    """Return Recall@1 of the held-out classes by iteration."""
    return {
        record["iteration"]: record["recall_of_validation"]["1"]
        for record in folder(tmp_path, *more).metrics()
        if "recall_of_validation" in record
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo.registry.components, "_registered", {})
        zoo.register("datasets", "few")(Few)
        path = tmp_path_factory.mktemp("whole")
        return path, run(path)


@pytest.mark.slow
def test_the_best_iterate_on_held_out_classes_is_the_one_that_is_tested(whole):
    path, result = whole
    found = measured(path)
    assert list(found) == [2, 4, 6, 8, 10, 12]
    best = max(found, key=found.get)
    assert best != 12
    assert result["iterate"] == "best"
    assert (result["iteration"], result["iterations"]) == (best, 12)
    assert result["validation"]["recall"]["1"] == found[best]
    assert result["validation"]["share"] == 0.25
    assert result["validation"]["classes"] == 10
    assert result["dataset"]["classes"] == 40
    state = folder(path).load_checkpoint()
    assert state["iteration"] == 12
    experiment = training_experiment.assemble(config(path))
    assert len(experiment.train.class_names) == 30
    assert result["validation"]["images"] == len(experiment.validation)
    experiment.embedder.load_state_dict(state["embedder"])
    tested = measure.evaluate(experiment, QUIET).recall
    assert result["recall"] == {str(k): v for k, v in tested.items()}
    assert torch.equal(torch.from_numpy(np.load(folder(path).path / "ranks.npy")), tested.ranks)
    held_out = measure.evaluate(experiment, QUIET, experiment.validation).recall
    assert result["validation"]["recall"] == {str(k): v for k, v in held_out.items()}
    assert result["validation"]["recall"] != folder(path).metrics()[-1]["recall_of_validation"]


def test_training_sees_the_other_classes_only(tmp_path):
    result = run(tmp_path, "loss=pml.ArcFaceLoss", "train.iterations=2")
    state = folder(tmp_path, "loss=pml.ArcFaceLoss", "train.iterations=2").load_checkpoint()
    assert state["loss"]["W"].shape == (16, 30)
    assert result["validation"]["classes"] == 10


@pytest.mark.slow
def test_the_test_split_is_looked_at_once_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(Few, "open", False)
    restore = Chosen.restore

    def at_the_end(self, network):
        restore(self, network)
        Few.open = True

    monkeypatch.setattr(Chosen, "restore", at_the_end)
    run(tmp_path)
    assert Few.looked_at == list(range(len(Few("test"))))
    monkeypatch.setattr(Few, "open", False)
    with pytest.raises(UserError, match="reading image 0 of Few failed.*before the end"):
        run(tmp_path, "evaluate.validation=null")


def test_without_evaluations_on_the_way_it_is_the_last_iterate(tmp_path):
    more = ["evaluate.every=null", "train.iterations=3"]
    result = run(tmp_path, *more)
    assert (result["iterate"], result["iteration"]) == ("last", 3)
    assert measured(tmp_path, *more) == {3: result["validation"]["recall"]["1"]}
    assert folder(tmp_path, *more).load_checkpoint()["chosen"]["weights"] == {}  # none but the last


def test_without_validation_nothing_is_chosen(tmp_path):
    more = ["evaluate.validation=null", "train.iterations=2", "evaluate.every=1"]
    result = run(tmp_path, *more)
    assert (result["iterate"], result["iteration"], result["validation"]) == ("last", 2, None)
    records = folder(tmp_path, *more).metrics()
    assert [list(r)[1] for r in records] == ["loss", "recall", "loss"]
    assert "chosen" not in folder(tmp_path, *more).load_checkpoint()


def test_it_is_said_what_was_held_out_and_chosen(tmp_path, capsys):
    result = run(tmp_path, "train.iterations=4", reporter=Reporter())
    said = capsys.readouterr().err
    assert "train    few: 30 classes" in said
    assert "held out few: 10 classes" in said
    score = f"validation R@1 {100 * result['validation']['recall']['1']:.2f}"
    assert f"chosen   iteration {result['iteration']}, {score}" in said
    assert any("  validation R@1 " in s for s in said.splitlines() if s.startswith("2/4"))


@pytest.mark.parametrize("schedule", ["constant", "cosine", "{name: linear, warmup: 11}"])
@pytest.mark.slow
def test_the_command_that_is_told_trains_as_long_as_was_chosen(
    tmp_path, capsys, schedule, monkeypatch
):
    offer = Chosen.offer

    def early(self, at, *of):  # whatever this machine computes, not the last
        if at <= 6:
            offer(self, at, *of)

    monkeypatch.setattr(Chosen, "offer", early)
    more = [f"schedule={schedule}", "train.log_every=1"]
    chosen = run(tmp_path, *more, reporter=Reporter())
    assert chosen["iteration"] < 12
    (said,) = (s for s in capsys.readouterr().err.splitlines() if "on all training classes" in s)
    _, _, source, *changed = shlex.split(said.split(": ", 1)[1])
    again = load(source, changed)
    result = runner.run(again, reporter=QUIET)
    assert result["iterations"] == result["iteration"] == chosen["iteration"]
    assert result["validation"] is None
    rates = [rates_of(one) for one in (RunFolder.of(again), folder(tmp_path, *more))]
    assert rates[0] == rates[1][: chosen["iteration"]]
    assert len(rates[1]) == 12


def rates_of(found):
    return [record["lr"] for record in found.metrics() if "lr" in record]


@pytest.mark.parametrize("at", [1, 5, 8, 11])
@pytest.mark.slow
def test_stopped_anywhere_it_chooses_the_same(whole, tmp_path, monkeypatch, at):
    """The machine stops in a step, after an evaluation that is not in a checkpoint yet."""
    step = training_step.Trainer.step

    def stopped(self, batch):
        if batch.iteration == at:
            raise MemoryError
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(training_step.Trainer, "step", stopped)
        with pytest.raises(MemoryError):
            run(tmp_path)
    assert_same(whole, tmp_path, run(tmp_path))


@pytest.mark.slow
def test_stopped_before_the_test_it_is_tested_with_what_was_chosen(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Few, "open", False)
        with pytest.raises(UserError, match="before the end"):
            run(tmp_path)
    assert not folder(tmp_path).finished
    monkeypatch.setattr(
        training_step.Trainer, "step", lambda *_: pytest.fail("it is trained again")
    )
    assert_same(whole, tmp_path, run(tmp_path))


@pytest.mark.slow
def test_what_competes_is_tested_only_if_it_is_chosen(whole, tmp_path, monkeypatch):
    _, wanted = whole
    monkeypatch.setattr(Few, "open", False)
    candidate = runner.run(config(tmp_path), reporter=QUIET, test=False)
    assert "recall" not in candidate
    assert candidate["validation"] == wanted["validation"]
    assert folder(tmp_path).candidate() == candidate
    assert folder(tmp_path).validated
    assert not folder(tmp_path).finished
    monkeypatch.setattr(
        training_step.Trainer, "step", lambda *_: pytest.fail("it is trained again")
    )
    assert runner.run(config(tmp_path), reporter=QUIET, test=False) == candidate
    selection = {"settings": {"loss.scale": "64"}, "among": {"loss.scale": ["1", "64"]}}
    folder(tmp_path).select(selection)
    monkeypatch.setattr(Few, "open", True)
    result = run(tmp_path)
    assert result["selection"] == selection
    assert "selection" not in wanted
    assert_same(whole, tmp_path, result)
    assert runner.run(config(tmp_path), reporter=QUIET, test=False) == result
    assert folder(tmp_path).candidate() == result
    folder(tmp_path).select({**selection, "among": {"loss.scale": ["64"]}})
    assert folder(tmp_path).result()["selection"]["among"] == {"loss.scale": ["64"]}


def test_without_held_out_classes_nothing_can_compete(tmp_path):
    with pytest.raises(UserError, match=r"set evaluate\.validation"):
        runner.run(config(tmp_path, "evaluate.validation=null"), reporter=QUIET, test=False)


@pytest.mark.slow
def test_killed_it_chooses_the_same(whole, tmp_path):
    """SIGKILL, which nothing can catch."""
    path = [str(TESTS / "shared"), str(TESTS / "training")]
    code = f"import sys; sys.path += {path}; import test_validation as t; "
    code += f"t.run_aloud({str(tmp_path)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:
            if line.strip().startswith("8/12"):
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert folder(tmp_path).load_checkpoint()["iteration"] >= 5
    assert not folder(tmp_path).finished
    assert_same(whole, tmp_path, run(tmp_path))


def run_aloud(output):
    """Be the process that is killed."""
    zoo.register("datasets", "few")(Few)
    run(Path(output), reporter=Reporter())


def assert_same(whole, tmp_path, result):
    path, wanted = whole
    for key in ("recall", "iteration", "validation"):
        assert result[key] == wanted[key]
    one, other = (folder(p).load_checkpoint() for p in (path, tmp_path))
    assert one["chosen"] == other["chosen"]
    for name, weight in one["embedder"].items():
        assert torch.equal(weight, other["embedder"][name]), name
    assert folder(path).metrics() == folder(tmp_path).metrics()


def test_too_few_classes_are_said_before_training(tmp_path):
    with pytest.raises(UserError, match=r"evaluate\.validation: a share of 0\.01 of 40 training"):
        run(tmp_path, "evaluate.validation=0.01")


def recall(*values):
    found = Recall(torch.zeros(1), [])
    found.update(zip((1, 2), values, strict=False))
    return found


def test_of_equals_the_first_is_chosen_and_a_copy_is_kept():
    chosen, network = Chosen(keep=True), nn.Linear(1, 1)
    for iteration, value in enumerate((0.5, 0.7, 0.7, 0.6), start=1):
        nn.init.constant_(network.weight, iteration)
        chosen.offer(iteration, recall(value, 1 - value), network)
    assert (chosen.iteration, chosen.recall) == (2, {1: 0.7, 2: pytest.approx(0.3)})
    other = Chosen(keep=True)
    other.load_state_dict(chosen.state_dict())
    other.restore(network)
    assert network.weight.item() == 2


def test_the_last_iterate_is_measured_however_bad_it_is():
    chosen, network = Chosen(keep=False), nn.Linear(1, 1)
    chosen.offer(1, recall(0.0), network)
    assert (chosen.iteration, chosen.recall) == (1, {1: 0.0})
    chosen.restore(network)
