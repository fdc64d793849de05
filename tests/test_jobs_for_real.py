"""Many runs in processes of their own: whatever ends them, or the command, they end as they should.

The rest of what `zoo run` does with many runs is in test_jobs.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

from zoo import _job, _live, _scheduler, jobs, runner
from zoo.progress import Reporter
from zoo.results import BusyError

QUIET = Reporter(quiet=True)
LONG = 60  # seconds that nothing should take, however busy the machine is


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        for c in range(4):
            folder = root / split / f"{split}{c}"
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = torch.randint(256, (16, 16, 3), dtype=torch.uint8, generator=generator)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    return root


def settings(photographs, output):
    return [
        "name=x",
        f"dataset={{name: image_folder, root: {photographs}}}",
        "images={crop: 16, mirror: true}",
        "model={backbone: {name: convnet, width: 2}, embedding_size: 4}",
        "sampler={name: m_per_class, classes: 4, per_class: 2}",
        "train={iterations: 500, log_every: 1, checkpoint_every: 100}",
        "schedule=constant",
        "device=cpu",
        f"output={output}",
    ]


def wait_for(what):
    until = time.monotonic() + LONG
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def free(folder):
    """Return whether no process is at a run."""
    try:
        with folder.locked():
            return True
    except ValueError:
        return False


@pytest.mark.slow
def test_stopped_and_killed_they_end_as_if_nothing_had_been(photographs, tmp_path, monkeypatch):
    given = settings(photographs, tmp_path / "runs")
    plan = jobs.make(["ice_glyphs"], given, [], "0,1")
    (job, other) = plan.jobs
    folder = job.folder
    command = [sys.executable, "-m", "zoo.cli", "run", "ice_glyphs", *given, "--seeds", "0,1"]

    # Ctrl-C: the run saves, the command says how to go on.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(folder.metrics()) > 20)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 1
    assert "Traceback" not in said
    reached = folder.reached()
    assert f"saved at iteration {reached} of 500" in said
    assert "2 of 2 runs are not finished; to go on: zoo run ice_glyphs name=x" in said
    assert reached > 20
    assert not other.folder.path.exists()

    # The command is killed: the run notices, and saves as well.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(folder.metrics()) > reached + 20)
        process.kill()
    wait_for(lambda: free(folder))
    assert reached < folder.reached() < 500
    reached = folder.reached()

    # A run is killed: the next one is begun, whose data are not there.
    children = []
    begin = _scheduler.Child.__init__

    def init(self, *arguments):
        begin(self, *arguments)
        children.append(self)

    def tick(self):
        first = children[0]
        if first.job.state == "at work" and (first.job.iteration or 0) > reached + 20:
            os.kill(first.process.pid, signal.SIGKILL)

    monkeypatch.setattr(_scheduler.Child, "__init__", init)
    monkeypatch.setattr(_scheduler, "_TICK", 0.01)
    monkeypatch.setattr(_live.Board, "tick", tick)
    lost = jobs.make(["ice_folder"], ["dataset.root=nowhere", "device=cpu", f"output={tmp_path}"])
    outcome = jobs.run(jobs.Plan((job, *lost.jobs)), 1, QUIET)
    killed, without_data = (failed.reason for failed in outcome.failed)
    assert killed.startswith("its process was ended by SIGKILL")
    assert without_data == "nowhere: the folder does not exist"

    # To the end: as if nothing had been.
    found = runner.run(job.config, reporter=QUIET)
    (twin,) = jobs.make(["ice_glyphs"], settings(photographs, tmp_path / "whole")).jobs
    wanted = runner.run(twin.config, reporter=QUIET)
    assert found["recall"] == wanted["recall"]
    assert folder.metrics() == twin.folder.metrics()
    ends = [one.load_checkpoint() for one in (folder, twin.folder)]
    assert [end["iteration"] for end in ends] == [500, 500]
    for name, weight in ends[0]["embedder"].items():
        assert torch.equal(weight, ends[1]["embedder"][name]), name


def test_a_process_that_is_about_to_stop_is_waited_for(monkeypatch):
    from zoo import environment

    def run(config, reporter):
        if len(told) < 3:
            raise BusyError("runs/x: another process is at this run")
        reporter.say("not to be heard")
        return {"recall": {"10": 0.5, "2": 0.25}}

    told = []
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(environment, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(_job.signal, "signal", lambda *_: None)
    monkeypatch.setattr(_job.time, "sleep", lambda _: None)
    monkeypatch.setattr(_job, "_PATIENCE", 1e9)
    assert _job._run(None, lambda **event: told.append(event)) == 0.25
    assert told == [{"state": "waits for another process"}] * 3
    told.clear()
    monkeypatch.setattr(_job, "_PATIENCE", -1.0)
    with pytest.raises(BusyError):
        _job._run(None, lambda **event: told.append(event))
