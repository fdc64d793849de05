"""Runs in processes of their own: whatever ends them or the command, they end as they should.

The rest of what `zoo run` does with many runs is in test_jobs.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import replicas
import torch

from zoo import _job, config, jobs, runner
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.results import BusyError
from zoo.train import DivergedError

QUIET = Reporter(quiet=True)
LONG = 120  # seconds that nothing should take, however busy the machine is

# `zoo run` without what it takes to read configs: as fast as the runs let it be.
COMMAND = """
import sys
from pathlib import Path
from zoo import _yaml
from zoo.jobs import Plan, run
from zoo._scheduler import Job
from zoo.results import RunFolder
from zoo.schema import Config

data = _yaml.read(Path(sys.argv[1]), "", []).plain()
found = [Config.model_validate({**data, "seed": seed}) for seed in (0, 1)]
jobs = [Job(one, "", RunFolder(Path(one.output) / one.run_name())) for one in found]
sys.exit(run(Plan(tuple(jobs))).unfinished)
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    return replicas.photographs(root, {"train": 4, "test": 4}, each=4, size=(16, 16))


def made(photographs, output):
    settings = [
        f"dataset={{name: image_folder, root: {photographs}}}",
        "images={crop: 16, mirror: true}",
        "model={backbone: {name: convnet, width: 2}, embedding_size: 4}",
        "sampler={name: m_per_class, classes: 4, per_class: 2}",
        "train={iterations: 500, log_every: 1, checkpoint_every: 100}",
        "device=cpu",
        f"output={output}",
    ]
    return jobs.make(["ice_glyphs"], settings, [], "0,1").jobs


def wait_for(what):
    until = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


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


def test_the_process_of_a_run_tells_its_recall(monkeypatch):
    from zoo import environment

    def run(config, reporter, test):
        reporter.say("not to be heard")
        held_out = {"validation": {"recall": {"1": 0.75}}}
        return {"recall": {"10": 0.5, "2": 0.25}} if test else held_out

    told = []
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(environment, "keep_freed_memory", lambda: None)
    assert _job._run(None, lambda **event: told.append(event)) == 0.25
    assert _job._run(None, lambda **event: told.append(event), test=False) == 0.75
    assert told == []


def test_what_is_expected_to_go_wrong_is_told_in_one_line():
    assert _job._expected(UserError("no such folder")) == "no such folder"
    assert _job._expected(DivergedError("the loss is nan")) == "the loss is nan"
    assert "the GPU's memory is full" in _job._expected(torch.cuda.OutOfMemoryError())
    assert _job._expected(KeyError("x")) is None
