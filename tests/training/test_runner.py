"""Runs end where they should, whatever stops them."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import zoo
from zoo import UserError, runner
from zoo.base import Preprocess
from zoo.config import load
from zoo.data import survey
from zoo.evaluate import ranks
from zoo.network.embedder import Embedder
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.support import environment
from zoo.training import experiment as training_experiment
from zoo.training import loop, measure
from zoo.training import step as training_step
from zoo.training.step import DivergedError

pytestmark = pytest.mark.usefixtures("few_glyphs")

SMALL = [
    "model.backbone.width=4",
    "model.embedding_size=16",
    "sampler.classes=8",
    "train.iterations=24",
    "train.checkpoint_every=5",
    "train.log_every=1",
    "images={crop: 28, pad: 1, mirror: true}",
    "optimizer.lr=5e-3",
    "device=cpu",
]
QUIET = Reporter(quiet=True)


def settings(tmp_path, *more):
    """Return the small settings, those given last taking the place of earlier ones."""
    everything = [*SMALL, f"output={tmp_path}", *more]
    return list({text.split("=")[0]: text for text in everything}.values())


def config(tmp_path, *more):
    return load("ice_glyphs", settings(tmp_path, *more))


def run(tmp_path, *more, **options):
    return runner.run(config(tmp_path, *more), reporter=QUIET, **options)


def folder(tmp_path, *more):
    return RunFolder(tmp_path / config(tmp_path, *more).run_name())


def final(tmp_path, *more):
    """Return the embeddings that the last checkpoint of a run gives, and the checkpoint."""
    checked = config(tmp_path, *more)
    state = RunFolder(tmp_path / checked.run_name()).load_checkpoint()
    experiment = training_experiment.assemble(checked)
    experiment.embedder.load_state_dict(state["embedder"])
    return measure.embed(experiment, experiment.test, QUIET)[0], state


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    path = tmp_path_factory.mktemp("whole")
    return path, run(path)


def test_the_folder_holds_what_is_promised(whole):
    path, result = whole
    found = folder(path)
    names = {p.name for p in found.path.iterdir() if not p.name.startswith(".")}
    arrays = {"ranks.npy", "labels.npy"}
    assert names == {"config.yaml", "metrics.jsonl", "result.json", "checkpoint.pt", *arrays}
    assert load(found.path / "config.yaml") == config(path)
    assert result["settings"] == config(path).settings()
    assert result == json.loads((found.path / "result.json").read_text())
    stored = np.load(found.path / "ranks.npy")
    embeddings, _ = final(path)
    test = zoo.build("datasets", "glyphs", split="test")
    assert torch.equal(torch.from_numpy(stored), ranks(embeddings, test.labels))
    assert np.array_equal(found.labels(), test.labels)
    assert result["recall"] == {str(k): float((stored <= k).mean()) for k in (1, 2, 4, 8)}
    assert result["iterate"] == "last"
    assert result["versions"]["torch"] == torch.__version__.split("+")[0]
    assert result["dataset"]["fingerprint"] == test.fingerprint()
    metrics = found.metrics()
    assert [r["iteration"] for r in metrics] == list(range(1, 25))
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    path, result = whole
    monkeypatch.setattr(training_experiment, "assemble", lambda _: pytest.fail("it was run again"))
    assert run(path) == result


@pytest.mark.slow
def test_a_random_network_learns(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))  # all classes: the claim is on many
    larger = ["model.backbone.width=16", "model.embedding_size=64", "images={}"]
    before = run(tmp_path, *larger, "train.iterations=0")
    after = run(tmp_path, *larger, "train.iterations=80")
    assert after["recall"]["1"] > before["recall"]["1"] + 0.1
    assert before["images_per_second"] is None


@pytest.mark.slow
def test_killed_at_random_iterations_it_ends_bit_for_bit_the_same(whole, tmp_path):
    """SIGKILL, which nothing can catch, twice; then once to the end."""
    path, result = whole
    command = [sys.executable, "-m", "zoo", "run", "ice_glyphs", *SMALL, f"output={tmp_path}"]
    chance = random.Random(os.environ.get("ZOO_TEST_SEED", "7"))
    reached = 0
    for _ in range(2):
        at = min(23, reached + chance.randint(2, 11))
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                done = line.split("/")[0].strip()
                if done.isdigit() and int(done) >= at:
                    process.send_signal(signal.SIGKILL)
                    break
            process.wait()
        assert process.returncode == -signal.SIGKILL
        assert not folder(tmp_path).finished
        state = folder(tmp_path).load_checkpoint()
        reached = state["iteration"] if state else 0
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"from iteration {reached}" in done.stderr
    assert "ice_glyphs" in done.stdout
    (wanted, first), (found, second) = final(path), final(tmp_path)
    assert torch.equal(wanted, found)
    for name, weight in first["embedder"].items():
        assert torch.equal(weight, second["embedder"][name]), name
    assert folder(tmp_path).result()["recall"] == result["recall"]
    one, other = (folder(p).metrics() for p in (path, tmp_path))
    assert one == other


class Dropout(nn.Module):
    """A backbone that draws from the global generator."""

    feature_dims = (49,)
    preprocess = Preprocess(channels="L", mean=(0.0,), std=(1.0,))

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 49, 7, 7)

    def forward(self, images):
        return (nn.functional.dropout(self.layer(images), 0.5, self.training),)


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 5, 17])
def test_dropout_adam_and_loss_parameters_are_resumed_too(tmp_path, monkeypatch, at):
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("backbones", "dropout")(Dropout)
    more = [
        "model.backbone=dropout",
        "loss=pml.ArcFaceLoss",
        "optimizer.head_multiplier=2",
        "optimizer.loss_multiplier=10",
        "schedule={name: cosine, warmup: 4}",
        "miner=pml.MultiSimilarityMiner",
        "evaluate.every=7",
    ]
    common = [s for s in SMALL if "width" not in s]
    checked = load("ice_glyphs", [*common, f"output={tmp_path}/a", *more])
    wanted = runner.run(checked, reporter=QUIET)
    other = load("ice_glyphs", [*common, f"output={tmp_path}/b", *more])
    step = training_step.Trainer.step

    def stopped(self, batch):
        if batch.iteration == at:
            raise MemoryError("the machine is full")
        step(self, batch)

    monkeypatch.setattr(training_step.Trainer, "step", stopped)
    with pytest.raises(MemoryError):
        runner.run(other, reporter=QUIET)
    monkeypatch.setattr(training_step.Trainer, "step", step)
    torch.manual_seed(123)
    found = runner.run(other, reporter=QUIET)
    assert found["recall"] == wanted["recall"]
    states = [RunFolder(c.output + "/" + c.run_name()).load_checkpoint() for c in (checked, other)]
    assert torch.equal(states[0]["loss"]["W"], states[1]["loss"]["W"])
    assert torch.equal(
        states[0]["embedder"]["heads.0.weight"], states[1]["embedder"]["heads.0.weight"]
    )
    assert (
        RunFolder(checked.output + "/" + checked.run_name()).metrics()
        == RunFolder(other.output + "/" + other.run_name()).metrics()
    )


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(whole, tmp_path, signum):
    path, result = whole
    command = [sys.executable, "-m", "zoo", "run", "ice_glyphs", *SMALL, f"output={tmp_path}"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.split("/")[0].strip() == "7":
                process.send_signal(signum)
        process.wait()
    said = "".join(said)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "to resume: zoo run ice_glyphs" in said
    state = folder(tmp_path).load_checkpoint()
    assert f"saved at iteration {state['iteration']} of 24" in said
    assert state["iteration"] >= 7
    assert run(tmp_path)["recall"] == result["recall"]
    assert path != tmp_path


def test_ctrl_c_in_the_last_iteration_leaves_the_test_for_later(whole, tmp_path, monkeypatch):
    with pytest.raises(loop.InterruptedRunError, match="saved at iteration 24 of 24"):
        interrupted(tmp_path, monkeypatch, at=23)
    assert not folder(tmp_path).finished
    with pytest.raises(loop.InterruptedRunError, match="saved at iteration 24 of 24"):
        stopped_before_the_first(tmp_path, monkeypatch)
    assert run(tmp_path)["recall"] == whole[1]["recall"]
    assert folder(tmp_path).metrics() == folder(whole[0]).metrics()


def stopped_before_the_first(tmp_path, monkeypatch):
    batches = loop.training_batches

    def stop(*arguments, **options):
        yield from batches(*arguments, **options)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", stop)
        run(tmp_path)


@pytest.mark.slow
def test_the_first_iterations_are_logged_more_often(tmp_path):
    more = ["train.log_every=15"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(loop.InterruptedRunError):
        interrupted(tmp_path, patch, at=6, more=more)
    run(tmp_path, *more)
    whole = tmp_path / "whole"
    run(whole, *more)
    assert folder(tmp_path, *more).metrics() == folder(whole, *more).metrics()
    assert [r["iteration"] for r in folder(whole, *more).metrics()] == [1, 2, 5, 10, 15, 20, 24]


def test_a_run_that_fails_in_its_first_step_leaves_no_folder(tmp_path, monkeypatch):
    def fail(self, batch):
        if batch.iteration == at:
            raise RuntimeError("shapes do not agree")
        step(self, batch)

    step, at = training_step.Trainer.step, 0
    monkeypatch.setattr(training_step.Trainer, "step", fail)
    with pytest.raises(RuntimeError):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []
    at = 6  # there is a checkpoint
    with pytest.raises(RuntimeError):
        run(tmp_path)
    assert folder(tmp_path).reached() == 5


def test_restart_forgets(whole, tmp_path):
    run(tmp_path, "train.iterations=2")
    before = folder(tmp_path, "train.iterations=2").path / "checkpoint.pt"
    old = before.stat().st_mtime_ns
    time.sleep(0.01)
    run(tmp_path, "train.iterations=2", restart=True)
    assert before.stat().st_mtime_ns > old
    assert whole


@pytest.mark.slow
def test_other_seeds_differ_and_the_same_seed_does_not(whole, tmp_path):
    path, _ = whole
    run(tmp_path, "train.iterations=2")
    run(tmp_path, "train.iterations=2", "seed=1")
    one, _ = final(tmp_path, "train.iterations=2")
    other, _ = final(tmp_path, "train.iterations=2", "seed=1")
    assert not torch.equal(one, other)
    assert path


def test_changed_images_are_not_trained_on_by_mistake(tmp_path, monkeypatch):
    from zoo.datasets.glyphs import Glyphs

    monkeypatch.setattr(training_step.Trainer, "check", lambda self: None)
    with pytest.raises(loop.InterruptedRunError):
        interrupted(tmp_path, monkeypatch, at=6)
    monkeypatch.setattr(Glyphs, "fingerprint", lambda self: "other")
    with pytest.raises(UserError, match="have changed since this run began"):
        run(tmp_path)


def test_ctrl_break_saves_too(tmp_path, monkeypatch):
    """As SIGBREAK, which only Windows has; another signal stands in for it."""
    monkeypatch.setattr(loop.signals, "STOP", (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
    with pytest.raises(loop.InterruptedRunError, match="saved at iteration 7 of 24"):
        interrupted(tmp_path, monkeypatch, at=6, signum=signal.SIGUSR1)
    assert folder(tmp_path).reached() == 7


def interrupted(tmp_path, monkeypatch, at, more=(), signum=signal.SIGINT):
    """Run until Ctrl-C comes in the iteration after ``at``."""
    step = training_step.Trainer.step

    def kill(self, batch):
        step(self, batch)
        if batch.iteration == at:
            signal.raise_signal(signum)

    with monkeypatch.context() as patch:
        patch.setattr(training_step.Trainer, "step", kill)
        run(tmp_path, *more)


def test_a_damaged_checkpoint_is_said(tmp_path, monkeypatch):
    with pytest.raises(loop.InterruptedRunError, match="saved at iteration 7 of 24"):
        interrupted(tmp_path, monkeypatch, at=6)
    (folder(tmp_path).path / "checkpoint.pt").write_bytes(b"torn")
    with pytest.raises(UserError, match="start again with --restart"):
        run(tmp_path)
    assert run(tmp_path, restart=True)["recall"]


@pytest.mark.parametrize("state", [{}, [1], {"fingerprint": None}])
def test_a_checkpoint_of_something_else_is_said(tmp_path, state):
    found = folder(tmp_path)
    found.path.mkdir()
    found.save_checkpoint(state)
    with pytest.raises(UserError, match="start again with --restart"):
        run(tmp_path)


@pytest.mark.parametrize(
    "changed", [{"iteration": 99}, {"clock": ["x", 1]}, {"meter": {"total": 1, "count": "x"}}]
)
def test_a_checkpoint_of_impossible_content_is_said(whole, tmp_path, changed):
    found = folder(tmp_path)
    found.path.mkdir()
    found.save_checkpoint({**folder(whole[0]).load_checkpoint(), **changed})
    with pytest.raises(UserError, match="start again with --restart"):
        run(tmp_path)


def test_a_checkpoint_of_another_network_is_said(whole, tmp_path):
    other = folder(tmp_path, "model.backbone.width=5")
    other.path.mkdir()
    state = folder(whole[0]).load_checkpoint()
    other.save_checkpoint(state)
    with pytest.raises(
        UserError, match=rf"of the run {state['run']['name']}, but the folder is of"
    ):
        run(tmp_path, "model.backbone.width=5")
    other.save_checkpoint({key: state[key] for key in state.keys() - {"run"}})  # as 0.1.0 wrote it
    with pytest.raises(
        UserError, match=r"does not belong to this run \(RuntimeError\); start again"
    ):
        run(tmp_path, "model.backbone.width=5")


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_nan_stops_with_iteration_loss_and_batch_and_keeps_the_checkpoint(
    tmp_path, monkeypatch, what
):
    class Poisoned(nn.Module):
        """Goes wrong in its twelfth step."""

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
            self.calls += 1
            value = embeddings.pow(2).mean()
            if self.calls != 12:
                return value
            return (
                value * float("nan")
                if what == "loss"
                else (embeddings - embeddings.detach()).abs().sqrt().sum()
            )

    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("losses", "poisoned")(Poisoned)
    with pytest.raises(DivergedError) as error:
        run(tmp_path, "loss=poisoned")
    message = str(error.value)
    assert (
        f"iteration 12: the {what} of poisoned is not finite on the batch of 32 images" in message
    )
    assert "optimizer.lr" in message
    kept = folder(tmp_path, "loss=poisoned").load_checkpoint()
    assert kept["iteration"] == 10
    assert all(w.isfinite().all() for w in kept["embedder"].values())


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_network_that_is_not_finite_is_not_saved(tmp_path, monkeypatch, log_every):
    step = training_step.Trainer.step

    def poison(self, batch):
        step(self, batch)
        if batch.iteration == 6:
            self.embedder.backbone.blocks[0][1].running_mean.fill_(float("nan"))

    monkeypatch.setattr(training_step.Trainer, "step", poison)
    more = [f"train.log_every={log_every}", "train.precision=fp16", "train.iterations=10"]
    with pytest.raises(DivergedError, match="the network is no longer finite"):
        run(tmp_path, *more)
    kept = folder(tmp_path, *more).load_checkpoint()
    assert kept["iteration"] == 5
    assert all(w.isfinite().all() for w in kept["embedder"].values())


def broken(embeddings, labels, *rest):
    return {}["what is not there"]


def changed_in_place(x):
    y = x.exp()
    value = y.sum()
    y += 1
    return value


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (
            broken,
            r"mine on 32 .*, failed: KeyError: 'what is not there' \(.*test_runner.py:\d",
        ),
        (
            lambda x, *_: nn.functional.linear(x, torch.ones(3, 3)),
            r"mine on 32 .*, failed: RuntimeError: mat1 and mat2 .* \(.*test_runner.py:\d+: .*"
            r"nn.functional.linear\(x, torch.ones\(3, 3\)\)",
        ),
        (
            lambda x, *_: changed_in_place(x),
            r"the backward pass of mine on 32 .* before training, failed: RuntimeError: one of the",
        ),
        (lambda *_: {"loss": 1}, "mine returned a dict; training needs a scalar"),
        (lambda x, *_: x.sum(1), r"mine returned a tensor of shape \(32,\)"),
        (lambda x, *_: x.detach().sum(), "mine returned a number that does not depend"),
    ],
)
def test_a_loss_that_fails_is_named_in_one_line(tmp_path, monkeypatch, loss, says):
    class Mine(nn.Module):
        def forward(self, *arguments):
            return loss(*arguments)

    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("losses", "mine")(Mine)
    with pytest.raises(UserError, match=says) as error:
        run(tmp_path, "loss=mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        "loss=pml.VICRegLoss",
        "loss={name: pml.NTXentLoss, distance: 3}",
        "loss={name: pml.NTXentLoss, reducer: pml.DoNothingReducer}",
        "loss={name: pml.TripletMarginLoss, reducer: {name: pml.DoNothingReducer}}",
        "loss={name: pml.ArcFaceLoss, num_classes: 1}",
        "loss={name: pml.ArcFaceLoss, embedding_size: 3}",
        "miner=pml.EmbeddingsAlreadyPackagedAsTriplets",
        "miner={name: pml.BatchHardMiner, distance: 3}",
    ],
)
def test_what_pml_does_not_check_is_told_in_one_line(tmp_path, setting):
    with pytest.raises(UserError) as error:
        run(tmp_path, setting)
    assert "\n" not in str(error.value)
    assert "pml." in str(error.value) or "leave it out" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "alone", "mined"),
    [
        (lambda self, embeddings, labels: embeddings.sum(), True, False),
        (lambda self, embeddings, labels, *, indices_tuple=None: embeddings.sum(), True, False),
        (lambda self, embeddings, labels, pairs=None: embeddings.sum(), True, True),
        (lambda self, *given: given[0].sum(), True, True),
        (lambda self, embeddings: embeddings.sum(), False, False),
    ],
)
def test_a_loss_that_cannot_be_called_is_refused_before_training(
    tmp_path, monkeypatch, forward, alone, mined
):
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("losses", "mine")(type("Mine", (nn.Module,), {"forward": forward}))
    for fits, miner in ((alone, "null"), (mined, "semihard")):
        settings = ["loss=mine", f"miner={miner}", "train.iterations=1"]
        if fits:
            assert run(tmp_path, *settings)
            continue
        with pytest.raises(UserError) as error:
            run(tmp_path, *settings)
        assert re.match(r"mine: with(out)? a miner, training calls loss\(embed", str(error.value))
        assert "labels, indices_tuple=None, ref_emb=None, ref_labels=None)" in str(error.value)
        assert not (folder(tmp_path, *settings).path / "config.yaml").exists()


def test_a_full_memory_is_not_blamed_on_the_loss(tmp_path, monkeypatch):
    class Mine(nn.Module):
        def forward(self, *_):
            raise MemoryError

    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("losses", "mine")(Mine)
    with pytest.raises(MemoryError):
        run(tmp_path, "loss=mine")


class Halves(Dropout):
    """It halves what has even sides, and when it is told to break, breaks on all."""

    broken = False

    def forward(self, images):
        if Halves.broken or images.shape[-1] % 2:
            torch.ones(2, 3) @ torch.ones(2, 3)
        return super().forward(images)


def test_a_backbone_that_fails_is_named_with_the_size_of_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("backbones", "mine")(Halves)
    left_out = ("model.backbone", "images", "train")
    given = [s for s in SMALL if not s.startswith(left_out)]
    given += [f"output={tmp_path}", "model.backbone=mine"]
    says = r"^mine on images of {0}x{0} pixels failed: RuntimeError: mat1 .*test_runner\.py:.*call"
    for side, iterations in ((31, 1), (31, 0), (28, 1)):
        few = [*given, f"images.crop={side}", f"train.iterations={iterations}"]
        if side % 2:
            with pytest.raises(UserError, match=says.format(side)):
                runner.run("ice_glyphs", few, reporter=QUIET)
        else:
            result = runner.run("ice_glyphs", few, reporter=QUIET)
    model = zoo.load(tmp_path / result["run"])
    monkeypatch.setattr(Halves, "broken", True)
    with pytest.raises(UserError, match=says.format(28)):
        model([np.zeros((32, 32), np.uint8)])
    Image.new("L", (32, 32)).save(tmp_path / "x.png")
    with pytest.raises(UserError, match=says.format(28)):
        model.embed_folder(tmp_path, reporter=QUIET)
    said = "mine on images of 28x28 pixels|mine cannot be exported: TorchRuntimeError"  # torch 2.4
    with pytest.raises((UserError, zoo.export.ExportError), match=said):
        zoo.export.export(model, tmp_path / "x.pt2", reporter=QUIET)


def one_of_each(tmp_path, test=4):
    for split, classes, each in (("train", 3, 2), ("test", test, 1)):
        for c in range(classes):
            inner = tmp_path / "photographs" / split / f"{split}{c}"
            inner.mkdir(parents=True)
            for i in range(each):
                pixels = np.random.default_rng([c, i]).integers(0, 256, (24, 24, 3), np.uint8)
                Image.fromarray(pixels).save(inner / f"{i}.png")
    return tmp_path / "photographs"


def test_a_test_that_no_network_can_pass_is_refused_before_training(tmp_path):
    root = one_of_each(tmp_path)
    with pytest.raises(UserError, match="test split has one image per class.* use class"):
        run(tmp_path, f"dataset={{name: image_folder, root: {root}}}")
    assert not list(tmp_path.glob("ice_glyphs*"))
    (finding,) = (f for f in survey.survey("image_folder", str(root)).findings if f[0] == "error")
    assert finding.where == "test"
    assert "one image per class" in finding.what


def test_how_many_test_images_are_alone_is_said(tmp_path, capsys):
    root = one_of_each(tmp_path)
    Image.new("RGB", (24, 24), "red").save(root / "test" / "test0" / "1.png")
    given = [f"dataset={{name: image_folder, root: {root}}}", "train.iterations=0"]
    result = runner.run(config(tmp_path, *given, "images={resize: 28}"))
    assert "alone    3 of 5 test images are the only one of their class, and score 0" in (
        capsys.readouterr().err
    )
    assert result["unmatched"] == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], r"\d+ images of 28x28 pixels take .*, and there are 100.0 kB .* evaluate.batch_s"),
        (["evaluate.batch_size=9"], "32 images of 28x28 .* lower the sampler's batches"),
        (["evaluate.batch_size=9", "train.chunk_size=9", "model.freeze=batchnorm"], None),
    ],
)
def test_batches_that_cannot_fit_are_refused_before_training(tmp_path, monkeypatch, more, says):
    monkeypatch.setattr(training_experiment.environment, "memory", lambda: 100_000)
    if says is None:
        training_experiment.assemble(config(tmp_path, *more))
        return
    with pytest.raises(UserError, match=says):
        training_experiment.assemble(config(tmp_path, *more))


def test_the_memory_is_that_of_the_machine():
    resource = pytest.importorskip("resource")
    room = environment.memory()
    assert room is None or room > 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough")])
def test_a_full_memory_is_not_blamed_on_the_backbone(error):
    def full(_):
        raise error

    embedder = Embedder(zoo.build("backbones", "convnet", width=2), 8)
    embedder.backbone.forward = full
    with pytest.raises(type(error)) as caught:
        embedder(torch.zeros(1, 1, 32, 32, dtype=torch.uint8))
    assert caught.value is error


class Plain(Dropout):
    """The same without anything random."""

    def forward(self, images):
        return (self.layer(images).tanh(),)


@pytest.mark.parametrize("backbone", [Plain, Dropout])
def test_in_chunks_the_gradient_is_that_of_the_whole_batch(tmp_path, monkeypatch, backbone):
    """With dropout, the whole batch is made of the chunks, to draw the same numbers."""
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("backbones", "mine")(backbone)
    common = [s for s in SMALL if "width" not in s]
    found = {}
    for chunk in ("null", "7"):
        settings_of = [*common, f"output={tmp_path}", "model.backbone=mine"]
        checked = load("ice_glyphs", [*settings_of, f"train.chunk_size={chunk}"])
        experiment = training_experiment.assemble(checked)
        trainer = loop.Training(experiment, folder(tmp_path), QUIET, loop.Clock()).trainer
        if chunk == "null":
            whole = trainer.embedder.forward
            trainer.embedder.forward = lambda x, f=whole: torch.cat([f(p) for p in x.split(7)])
        batches = loop.training_batches(
            experiment.train, checked.images, experiment.sampler, seed=0, start=0, stop=3
        )
        torch.manual_seed(0)
        for batch in batches:
            trainer.step(batch)
        found[chunk] = [p.detach().clone() for p in trainer.parameters]
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


class ThreeLevels(nn.Module):
    """A backbone of three levels."""

    preprocess = Preprocess(channels="L", mean=(0.0,), std=(1.0,))

    def __init__(self, levels: int = 3):
        super().__init__()
        widths = [1, 8, 16, 32]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.levels = levels
        self.feature_dims = tuple(widths[-levels:])

    def forward(self, images):
        maps = []
        for block in self.blocks:
            images = block(images)
            maps.append(images)
        return tuple(maps[-self.levels :])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["ice", "pml.ArcFaceLoss"])
def test_every_level_learns_by_a_loss_of_its_own(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("backbones", "levels")(ThreeLevels)
    found = {}
    for levels in (1, 2, 3):
        more = [
            f"model.backbone={{name: levels, levels: {levels}}}",
            f"loss.name={loss}",
            "train.iterations=60",
            "train.log_every=10",
            "miner=pml.MultiSimilarityMiner" if loss == "ice" else "miner=",
        ]
        checked = load("ice_glyphs", [*[s for s in settings(tmp_path, *more) if "width" not in s]])
        result = runner.run(checked, reporter=QUIET)
        assert result["embedding_size"] == 16 * levels
        metrics = RunFolder(tmp_path / checked.run_name()).metrics()
        found[levels] = result["recall"]["1"]
        if levels == 1:
            assert "loss_of_levels" not in metrics[0]
            assert "recall_of_levels" not in result
            continue
        assert list(result["recall_of_levels"]) == [str(i + 1) for i in range(levels)]
        assert result["recall"] not in result["recall_of_levels"].values()
        first, last = metrics[0]["loss_of_levels"], metrics[-1]["loss_of_levels"]
        assert all(b < a for a, b in zip(first, last, strict=True)), (first, last)
        assert sum(last) == pytest.approx(metrics[-1]["loss"])
    assert len(set(found.values())) == 3


def test_chunks_need_batch_normalisation_to_be_frozen(tmp_path):
    with pytest.raises(UserError, match=r"set model\.freeze=batchnorm"):
        run(tmp_path, "train.chunk_size=7")
    assert run(tmp_path, "train.chunk_size=7", "model.freeze=batchnorm", "train.iterations=2")


def test_a_batch_that_is_too_small_for_the_loss_is_refused_before_training(tmp_path):
    small = ["loss=spectral_clust", "sampler.classes=4", "sampler.per_class=4"]
    with pytest.raises(UserError, match="exactly zero gradient for batches of 16 images and emb"):
        run(tmp_path, *small)
    assert run(tmp_path, *small, "model.embedding_size=8", "train.iterations=2")


def test_features_are_measured_on_demand(tmp_path):
    result = run(tmp_path, "train.iterations=1", "evaluate.features=true")
    assert set(result["recall_of_features"]) == {"1", "2", "4", "8"}
    assert result["recall_of_features"] != result["recall"]


def test_faiss_gives_the_same_recall(whole, tmp_path):
    pytest.importorskip("faiss")
    assert run(tmp_path, "evaluate.backend=faiss")["recall"] == whole[1]["recall"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(tmp_path, precision):
    result = run(tmp_path, f"train.precision={precision}", "train.clip_norm=1.0")
    assert result["precision"] == precision
    metrics = folder(tmp_path, f"train.precision={precision}", "train.clip_norm=1.0").metrics()
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_a_run_outside_the_main_thread(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path, "train.iterations=1")))
    thread.start()
    thread.join()
    assert found[0]["recall"]


def test_a_config_without_a_file_cannot_train_on_the_test_split_either(tmp_path):
    data = config(tmp_path).resolved()
    data["dataset"]["split"] = "test"
    with pytest.raises(UserError, match=r"glyphs\.split: the run sets it; leave it out"):
        runner.run(zoo.config.Config.model_validate(data), reporter=QUIET)


def test_a_loss_that_needs_an_unknown_thing_is_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="memory_size"):
        run(tmp_path, "loss={name: pml.CrossBatchMemory, loss: pml.NTXentLoss, memory_sise: 3}")


def test_no_gpu_is_said(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="device=cuda: this machine has 0 GPUs"):
        run(tmp_path, "device=cuda")
