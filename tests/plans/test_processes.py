"""Runs in processes of their own: whatever ends them or the command, they end as they should.

The rest of what `zoo run` does with many runs is in test_jobs.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import plan_runs
import pytest
import torch
from plan_runs import LONG, command, wait_for

from zoo import config, runner
from zoo.errors import UserError
from zoo.plans import planning
from zoo.plans import process as plans_process
from zoo.progress import Reporter
from zoo.runs.folder import BusyError
from zoo.training.step import DivergedError

QUIET = Reporter(quiet=True)

# `zoo run` without what it takes to read configs: as fast as the runs let it be.
COMMAND = """
import sys
from pathlib import Path
from zoo.support import yaml
from zoo.plans.planning import Plan
from zoo.plans.running import run
from zoo.plans.jobs import Job
from zoo.runs import RunFolder
from zoo.config import Config

data = yaml.read(Path(sys.argv[1]), "", []).plain()
found = [Config.model_validate({**data, "seed": seed}) for seed in (0, 1)]
jobs = [Job(one, "", RunFolder(Path(one.output) / one.run_name())) for one in found]
sys.exit(run(Plan(tuple(jobs))).unfinished)
"""


TRAIN = "train={iterations: 500, log_every: 1, checkpoint_every: 100}"
RUNS = int(os.environ.get("ZOO_TEST_RUNS", "4"))  # of a plan that three commands share


def settings(photographs, output, train=TRAIN):
    return plan_runs.settings(photographs, output, train)


def made(photographs, output):
    return planning.make(["ice_glyphs"], settings(photographs, output), [], "0,1").jobs


def is_free(folder):
    """Return whether no process is at a run."""
    try:
        with folder.locked():
            return True
    except BusyError:
        return False


@pytest.mark.slow
def test_stopped_and_killed_it_ends_as_if_nothing_had_been(photographs, tmp_path):
    job, other = made(photographs, tmp_path / "runs")
    folder = job.folder
    (tmp_path / "x.yaml").write_text(config.dump(job.config))
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "x.yaml")]

    # Ctrl-C: the run saves, and no other one is begun.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(folder.metrics()) > 20)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 2
    assert "Traceback" not in said
    reached = folder.reached()
    assert f"saved at iteration {reached} of 500" in said
    assert reached > 20
    assert not other.folder.path.exists()

    # The command is killed: the run notices, and saves as well.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(folder.metrics()) > reached + 20)
        process.kill()
    wait_for(lambda: is_free(folder))
    assert reached < folder.reached() < 500

    # It goes on, and ends as one that was never stopped.
    found = runner.run(job.config, reporter=QUIET)
    twin = made(photographs, tmp_path / "whole")[0]
    wanted = runner.run(twin.config, reporter=QUIET)
    assert found["recall"] == wanted["recall"]
    assert folder.metrics() == twin.folder.metrics()
    ends = [one.load_checkpoint() for one in (folder, twin.folder)]
    for name, weight in ends[0]["embedder"].items():
        assert torch.equal(weight, ends[1]["embedder"][name]), name


@pytest.mark.slow
def test_two_commands_on_one_plan_share_it(photographs, tmp_path):
    given = settings(photographs, tmp_path / "runs", "train={iterations: 20}")
    given += ["evaluate.validation=0.25", "--sweep", "loss.scale=16,64", "--jobs", "2"]
    both = [command(*given) for _ in range(2)]
    said = [one.communicate(timeout=5 * LONG) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    (out, err), (other, _) = said
    assert out == other
    assert "chosen by validation R@1" in out
    assert "failed" not in err
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 1


@pytest.mark.slow
def test_three_commands_share_a_plan_and_one_of_them_is_killed(photographs, tmp_path):
    given = settings(photographs, tmp_path / "runs", "train={iterations: 150, log_every: 1}")
    seeds = ",".join(map(str, range(RUNS)))
    folders = [job.folder for job in planning.make(["ice_glyphs"], given, [], seeds).jobs]
    three = [command(*given, "--seeds", seeds, OMP_NUM_THREADS="1") for _ in range(3)]
    wait_for(lambda: sum(bool(folder.metrics()) for folder in folders) >= 3)
    three[0].kill()
    said = [one.communicate(timeout=10 * LONG) for one in three]
    assert [one.returncode for one in three] == [-signal.SIGKILL, 0, 0], said
    (_, _), (out, _), (other, _) = said
    assert out == other
    assert re.search(rf"^ice_glyphs +ice +{RUNS} ", out, re.M)
    for folder in folders:
        assert folder.result()["iteration"] == 150
        assert [line["iteration"] for line in folder.metrics()] == list(range(1, 151))


@pytest.mark.slow
def test_the_last_run_of_a_killed_plan_ends_as_if_nothing_had_been(photographs, tmp_path):
    ends = []
    for name in ("disturbed", "whole"):
        given = settings(photographs, tmp_path / name, "train={log_every: 1}")
        sweep = "train.iterations=5,300"
        short, last = (job.folder for job in planning.make(["ice_glyphs"], given, [sweep]).jobs)
        given += ["--sweep", sweep, "--jobs", "2"]
        if name == "disturbed":
            with command(*given, OMP_NUM_THREADS="2") as process:
                wait_for(lambda short=short: short.finished)
                process.kill()
            wait_for(lambda last=last: is_free(last))
            assert not last.finished
        with command(*given, OMP_NUM_THREADS="2") as process:
            said = process.communicate(timeout=5 * LONG)
        assert process.returncode == 0, said
        # It has the threads of the plan, though at the end it could have had all of them.
        assert last.result()["hardware"]["threads"] == 1
        ends.append(last)
    disturbed, whole = ends
    assert (disturbed.ranks() == whole.ranks()).all()
    assert disturbed.metrics() == whole.metrics()


def test_the_process_of_a_run_tells_its_recall(monkeypatch):
    from zoo.support import environment

    def run(config, reporter, test):
        reporter.say("not to be heard")
        held_out = {"validation": {"recall": {"1": 0.75}}}
        return {"recall": {"10": 0.5, "2": 0.25}} if test else held_out

    told = []
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(environment, "keep_freed_memory", lambda: None)
    assert plans_process._run(None, lambda **event: told.append(event)) == 0.25
    assert plans_process._run(None, lambda **event: told.append(event), test=False) == 0.75
    assert told == []


def test_what_is_expected_to_go_wrong_is_told_in_one_line():
    assert plans_process._expected(UserError("no such folder")) == "no such folder"
    assert plans_process._expected(DivergedError("the loss is nan")) == "the loss is nan"
    assert "the GPU's memory is full" in plans_process._expected(torch.cuda.OutOfMemoryError())
    assert plans_process._expected(KeyError("x")) is None
