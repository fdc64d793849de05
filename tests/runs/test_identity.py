"""Damaged, edited and exchanged files of runs: what reads one does not go on with other numbers."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from small_run import SETTINGS, downgrade_to_0_1_0, small_run

import zoo
from zoo import leaderboard, runner
from zoo.comparing import compare
from zoo.progress import Reporter
from zoo.report import collect
from zoo.runs import identity
from zoo.runs.folder import RunFolder

QUIET = Reporter(quiet=True)
FILES = ("result.json", "config.yaml", "checkpoint.pt", "ranks.npy", "labels.npy", "embeddings.npz")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return finished runs that have kept embeddings: two seeds, and another setting."""
    here = tmp_path_factory.mktemp("runs")
    found = [small_run(here, *more) for more in ([], ["seed=1"], ["optimizer.lr=0.02"])]
    for run in found:
        zoo.load(run).embed_test(QUIET)
    return found


@pytest.fixture
def copies(runs, tmp_path):
    """Return copies of the runs that a test may damage."""
    return [shutil.copytree(run, tmp_path / run.name) for run in runs]


def table(run):
    (one,) = leaderboard.load(run)
    return {key: one[key] for key in ("run", "recall", "settings", "dataset", "seed")}


def compared(run):
    (one,) = compare.read([RunFolder(run)])
    return one.ranks.tolist(), one.result["recall"]


def classes(run):
    return RunFolder(run).labels().tolist()


def embedded(run):
    found = zoo.load(run).embed_test(QUIET)
    return found.embeddings.tolist(), found.labels.tolist()


def page(run):
    (one,) = collect.collect(run.parent, run.name)
    if one.problem:
        raise zoo.UserError(one.problem)
    return one.result["recall"], one.folder.ranks().tolist()


def again(run):
    """Return what the command says of a run that is finished."""
    return RunFolder(run).result()["recall"]


READERS = (table, compared, classes, embedded, page, again)


def numbers(run):
    """Return what each reader makes of a run: numbers, or that it refuses."""
    found, refusals = {}, []
    for reader in READERS:
        try:
            found[reader.__name__] = reader(run)
        except zoo.UserError as error:
            found[reader.__name__] = None
            refusals.append(str(error))
    assert all(str(run) in refusal for refusal in refusals)
    return found


def assert_same_or_refused(found, expected):
    for name, value in found.items():
        assert value is None or value == expected[name], name


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_makes_no_difference(name, copies):
    """In a metric zoo, a run that cannot be read is better than one that reads as another."""
    run = copies[0]
    expected = numbers(run)
    assert None not in expected.values()
    data = (run / name).read_bytes()
    chance = random.Random(name)
    for _ in range(25):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        (run / name).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        assert_same_or_refused(numbers(run), expected)
        if name == "embeddings.npz":  # were computed again and written
            assert (run / name).stat().st_size
    (run / name).write_bytes(data)
    assert numbers(run) == expected


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("other", [1, 2], ids=["another seed", "another setting"])
def test_files_of_another_run_are_refused(name, other, copies):
    run = copies[0]
    expected = numbers(run)
    shutil.copy(copies[other] / name, run / name)
    found = numbers(run)
    assert_same_or_refused(found, expected)
    same = (copies[0] / name).read_bytes() == (copies[other] / name).read_bytes()
    assert same or name == "embeddings.npz" or None in found.values()


def test_a_number_that_was_typed_in_is_refused(copies):
    run = copies[0]
    record = json.loads((run / "result.json").read_text())
    record["recall"]["1"] = 0.999
    (run / "result.json").write_text(json.dumps(record))
    with pytest.raises(zoo.UserError, match=r"result.json.*no longer what the run wrote"):
        RunFolder(run).result()
    with pytest.warns(UserWarning, match="no longer what the run wrote"):
        assert len(leaderboard.load(run.parent)) == 2  # the others


def test_an_edited_config_is_not_the_runs_own(copies, command):
    run = copies[0]
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("resize: 32", "resize: 40"))
    status, _, said = command("measure", run, "--measures", "map_at_r")
    assert (status, "config.yaml" in said, "--restart" in said) == (2, True, True)
    with pytest.raises(zoo.UserError, match=r"config.yaml: not the file that the run wrote"):
        zoo.load(run)


def test_swapped_checkpoints_are_not_measured(copies, command):
    a, b, *_ = (run / "checkpoint.pt" for run in copies)
    one, other = a.read_bytes(), b.read_bytes()
    a.write_bytes(other)
    b.write_bytes(one)
    for run in copies[:2]:
        before = (run / "result.json").read_bytes()
        status, _, said = command("measure", run, "--measures", "map_at_r")
        said = "".join(said.split())  # however the lines are broken
        assert (status, "checkpoint.pt" in said) == (2, True)
        assert all(one.name in said for one in copies[:2])
        assert (run / "result.json").read_bytes() == before


@pytest.mark.parametrize("other", [1, 2])
def test_a_run_does_not_go_on_from_the_checkpoint_of_another(other, runs, copies):
    run = copies[0]
    for name in ("result.json", "ranks.npy", "labels.npy"):
        (run / name).unlink()
    assert zoo.load(run).embedding_size  # its own checkpoint, of a run that is not finished
    shutil.copy(runs[other] / "checkpoint.pt", run / "checkpoint.pt")
    for use in (zoo.load, resume):
        with pytest.raises(zoo.UserError) as refused:
            use(run)
        for name in (runs[other].name, run.name):
            assert name in str(refused.value)


def resume(run):
    return runner.run(run / "config.yaml", [f"output={run.parent}"], reporter=QUIET)


@pytest.mark.parametrize("threads", ["2", 0, -1, 10**9, 1.5])
def test_a_number_of_threads_that_is_none(threads, copies):
    run = copies[0]
    (run / "result.json").unlink()
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save({**state, "threads": threads}, run / "checkpoint.pt")
    with pytest.raises(
        zoo.UserError, match=r"does not belong to this run \(ValueError\); start again"
    ):
        resume(run)


def test_embeddings_that_say_otherwise_than_their_digest_are_computed_again(copies):
    run = copies[0]
    expected = embedded(run)
    with np.load(run / "embeddings.npz") as kept:
        arrays = dict(kept)
    arrays["embeddings"] = arrays["embeddings"][::-1]
    np.savez(run / "embeddings.npz", **arrays)
    assert embedded(run) == expected


def test_a_run_may_be_renamed(copies, tmp_path):
    run = copies[0]
    expected = embedded(run), again(run)
    moved = run.rename(tmp_path / "kept")
    assert (embedded(moved), again(moved)) == expected


@pytest.mark.parametrize("other", [1, 2])
def test_the_folder_of_another_run_is_not_taken_for_this_one(other, copies, command):
    run, config = copies[0], RunFolder(copies[0]).config()
    shutil.rmtree(run)
    copies[other].rename(run)
    for use in (runner.run, RunFolder(run).result):
        with pytest.raises(zoo.UserError, match="of the run .* but the folder is of"):
            use(config.model_copy(update={"output": str(run.parent)}))
    status, out, err = command("run", "ice_glyphs", *as_settings(config), f"output={run.parent}")
    assert (status, out) == (2, "")
    assert f"of the run {copies[other].name}, but the folder is of {run.name}" in err
    status, _, err = command(
        "run", "ice_glyphs", *as_settings(config), f"output={run.parent}", "--seeds", "0"
    )
    assert status == 2
    assert f"but the folder is of {run.name}" in err


@pytest.mark.slow
def test_a_plan_does_not_count_the_folder_of_another_run(copies, command):
    run, config = copies[0], RunFolder(copies[0]).config()
    shutil.rmtree(run)
    copies[1].rename(run)
    plan = [*as_settings(config), f"output={run.parent}", "--seeds", "0,1"]
    status, out, err = command("run", "ice_glyphs", *plan)
    assert status == 1
    assert f"of the run {copies[1].name}, but the folder is of {run.name}" in err
    assert "seed 1" not in out


def as_settings(config):
    return [f"dataset={{name: image_folder, root: {config.dataset.arguments['root']}}}", *SETTINGS]


def test_measures_are_added_to_a_record_that_stays_whole(copies):
    folder = RunFolder(copies[0])
    folder.add_measures({"map_at_r": 0.5}, {})
    assert folder.result()["measures"] == {"map_at_r": 0.5}
    assert folder.ranks().size


def test_a_run_of_0_1_0_is_used_as_it_was(copies):
    run = copies[0]
    expected = numbers(run)
    assert numbers(downgrade_to_0_1_0(run)) == expected
    for name in ("result.json", "ranks.npy", "labels.npy"):
        (run / name).unlink()
    assert resume(run)["recall"] == expected["again"]


def test_a_record_without_its_seal_is_refused():
    sealed = identity.seal({"files": {}, "recall": {"1": 0.5}})
    identity.check_seal(sealed)
    identity.check_seal({"recall": {"1": 0.5}})  # of before there were seals
    for wrong in ({**sealed, "recall": {"1": 0.6}}, {k: sealed[k] for k in ("files", "recall")}):
        with pytest.raises(ValueError, match="no longer what the run wrote"):
            identity.check_seal(wrong)


# --- what held-out classes say


def held_out(here, seed):
    validation = ["evaluate.validation=0.5", f"seed={seed}"]
    data = f"dataset={{name: image_folder, root: {here / 'photographs'}}}"
    fewer = [s.replace("classes=3", "classes=2") for s in SETTINGS]
    settings = [data, *fewer, f"output={here / 'runs'}", *validation]
    return runner.run("ice_glyphs", settings, reporter=QUIET, test=False)


def test_what_held_out_classes_say_is_of_this_run(runs, tmp_path):
    shutil.copytree(runs[0].parent.parent / "photographs", tmp_path / "photographs")
    a, b = (tmp_path / "runs" / held_out(tmp_path, seed)["run"] for seed in (0, 1))
    folder = RunFolder(a)
    kept = (a / "validation.json").read_bytes()
    assert folder.candidate()["validation"]["recall"]
    for text, said in (
        ((b / "validation.json").read_bytes(), rf"{a.name}.* or of another run than {b.name}"),
        (kept.replace(b'"share": 0.5', b'"share": 0.25'), r"validation.json.*no longer what"),
    ):
        (a / "validation.json").write_bytes(text)
        with pytest.raises(zoo.UserError, match=said):
            folder.candidate()
    (a / "validation.json").write_bytes(kept)
    folder.select({"settings": {}, "among": {}})
    assert folder.candidate()["selection"] == {"settings": {}, "among": {}}
    shutil.copy(b / "checkpoint.pt", a / "checkpoint.pt")
    with pytest.raises(zoo.UserError, match=rf"checkpoint.pt: of the run {b.name}, .* of {a.name}"):
        zoo.load(a)


def test_a_flipped_bit_in_what_held_out_classes_say(runs, tmp_path):
    shutil.copytree(runs[0].parent.parent / "photographs", tmp_path / "photographs")
    run = tmp_path / "runs" / held_out(tmp_path, 0)["run"]
    path = run / "validation.json"
    data, expected = path.read_bytes(), RunFolder(run).candidate()
    chance = random.Random("validation")
    refused = 0
    for _ in range(60):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            found = RunFolder(run).candidate()
        except zoo.UserError:
            refused += 1
        else:  # white space, or the name of the seal
            assert {**found, "seal": ""}.items() >= {**expected, "seal": ""}.items()
    assert refused > 30


def test_a_network_that_was_lost_is_trained_again_beside_what_held_out_classes_say(runs, tmp_path):
    """The record is of the lost checkpoint; it must not refuse the one that grows."""
    shutil.copytree(runs[0].parent.parent / "photographs", tmp_path / "photographs")
    run = tmp_path / "runs" / held_out(tmp_path, 0)["run"]
    state = RunFolder(run).load_checkpoint()
    folder = RunFolder(run)
    assert "checkpoint.pt" in folder.candidate()["files"]
    (run / "checkpoint.pt").unlink()
    folder.save_checkpoint({**state, "iteration": 1})
    assert "checkpoint.pt" not in folder.candidate()["files"]
    assert RunFolder(run).load_checkpoint()["iteration"] == 1
    (run / "checkpoint.pt").unlink()
    result = resume(run)
    assert result["files"].keys() == {"config.yaml", "checkpoint.pt", "ranks.npy", "labels.npy"}
    assert RunFolder(run).candidate()["validation"] == result["validation"]


def test_a_chosen_run_may_be_measured_in_another_way(runs, tmp_path):
    """What makes no difference to a run is in its config all the same, which is written again."""
    shutil.copytree(runs[0].parent.parent / "photographs", tmp_path / "photographs")
    run = tmp_path / "runs" / held_out(tmp_path, 0)["run"]
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("workers: null", "workers: 1"))
    with pytest.raises(zoo.UserError, match=r"config.yaml: not the file that the run wrote"):
        RunFolder(run).candidate()
    (run / "config.yaml").write_text(text)
    settings = [f"output={run.parent}", "evaluate.batch_size=3"]
    shutil.copy(run / "config.yaml", tmp_path / "ice_glyphs.yaml")
    result = runner.run(tmp_path / "ice_glyphs.yaml", settings, reporter=QUIET)
    assert result["run"] == run.name
    RunFolder(run).select({"settings": {}, "among": {}})
    assert RunFolder(run).candidate()["selection"] == {"settings": {}, "among": {}}


def test_what_is_written_down_is_what_was_written(tmp_path):
    """Damage that comes before the run ends is not sealed with it."""
    folder = RunFolder(tmp_path)
    folder.save_checkpoint({"iteration": 1})
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged while it was measured")
    record = {
        **{"run": "r-d-s0", "config": "r", "digest": "d", "seed": 0, "dataset": {"name": "d"}},
        **{"loss": None, "backbone": "b", "embedding_size": 2, "recall": {1: 0.5}},
        "seconds": {"training": 1.0},
    }
    kept = folder.finish(record, np.ones(2, np.int32), np.zeros(2, np.int64))
    assert kept == folder.result()
    assert kept["files"]["checkpoint.pt"] != identity.digests(tmp_path, ["checkpoint.pt"])
    with pytest.raises(zoo.UserError, match=r"checkpoint.pt: not"):
        folder.load_checkpoint()


# --- threads belong to the run

STOPPED = """
import os, signal, sys
from zoo import runner
from zoo.progress import Reporter
class Stops(Reporter):
    def training(self, start, *rest):
        os.kill(os.getpid(), signal.SIGTERM) if {stop} and not start else None
        return super().training(start, *rest)
try:
    print(runner.run("ice_glyphs", sys.argv[1:], reporter=Stops(quiet=False))["hardware"])
except runner.InterruptedRunError as error:
    print(error)
"""


def train(folder, threads, stop=False):
    small = ("model.backbone.width=8", "sampler.classes=8", "evaluate.batch_size=64")
    length = ("train.iterations=12", "train.checkpoint_every=4")
    settings = (*small, *length, "device=cpu", f"output={folder}")
    code = STOPPED.format(stop=stop)
    done = subprocess.run(
        [sys.executable, "-c", code, *settings],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("few_glyphs")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_a_run_goes_on_with_the_threads_that_it_began_with(tmp_path):
    assert "'threads': 2" in train(tmp_path / "whole", 2)
    assert "saved at iteration" in train(tmp_path / "parts", 2, stop=True)
    said = train(tmp_path / "parts", 1)
    assert "threads  2 instead of 1, as at the start of the run" in said
    assert "'threads': 2" in said
    (whole,), (parts,) = ((tmp_path / name).iterdir() for name in ("whole", "parts"))
    assert np.array_equal(np.load(whole / "ranks.npy"), np.load(parts / "ranks.npy"))
    one, other = (torch.load(run / "checkpoint.pt") for run in (whole, parts))
    assert one["threads"] == other["threads"] == 2
    for name, weights in one["embedder"].items():
        assert torch.equal(weights, other["embedder"][name]), name
