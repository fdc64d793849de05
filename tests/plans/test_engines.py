"""Engines: named, given the user's resources, those of others; lost runs; the background."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import commands
import pytest
from places import ROOT
from plan_runs import settings, wait_for

from zoo.errors import UserError
from zoo.plans import jobs as plans_jobs
from zoo.plans import planning, running, scheduler
from zoo.plans.engines import chosen
from zoo.plans.engines.base import Engine, Handle
from zoo.plans.engines.local import Local
from zoo.plans.engines.slurm import Slurm
from zoo.progress import Reporter
from zoo.support import signals

QUIET = Reporter(quiet=True)


@pytest.fixture(autouse=True)
def resources(tmp_path, monkeypatch):
    """Write nothing yet into the file of the user's resources; return its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_ENGINES", str(tmp_path / "engines.yaml"))
    (tmp_path / "engines.yaml").write_text("{}\n")
    return tmp_path / "engines.yaml"


def plan_of(photographs, count=2):
    given = settings(photographs, "runs", "train={iterations: 4}")
    return planning.make(["ice_glyphs"], given, [], ",".join(map(str, range(count))))


# ---- chosen by name


def test_without_a_file_it_is_this_machine(monkeypatch):
    monkeypatch.delenv("ZOO_ENGINES")
    monkeypatch.setenv("XDG_CONFIG_HOME", "nowhere")
    assert isinstance(chosen.engine(), Local)
    assert chosen.engine(jobs=3).jobs == 3


def test_the_file_says_which_and_what_it_may_use(resources):
    resources.write_text("on: slurm\nslurm: {time: 60, jobs: 5, setup: [module load cuda]}\n")
    made = chosen.engine()
    assert isinstance(made, Slurm)
    assert made.jobs == 5
    assert made._settings["time"] == 60
    assert chosen.engine(jobs=2).jobs == 2
    assert isinstance(chosen.engine("local"), Local)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("{}", "slrum", "--on slrum: there is no such engine; give local, ray or slurm; did you"),
        ("on: rya", None, "engines.yaml: on: rya: there is no such engine"),
        ("slurn: {}", None, "engines.yaml: slurn: there is no such engine"),
        ("slurm: 5", "slurm", "slurm: must be a map of settings, not 5"),
        ("[1]", None, "must be a map of engines to their settings, not a list"),
        ("slurm: {tmie: 5}", "slurm", "slurm.tmie: unknown argument of slurm; did you mean time?"),
        ("slurm: {time: soon}", "slurm", "slurm.time: must be a whole number"),
        ("slurm: {time: 0}", "slurm", "time must be a whole number 1 or more, not 0"),
        ("slurm: [", "slurm", "engines.yaml:"),
        ("ray: {gpus: -1}", "ray", "gpus must be 0 or more, not -1"),
        ("on: [1]", None, "there is no such engine"),
        ("slurm: {gpus: -1}", "slurm", "gpus must be"),
        ("slurm: {memory: -5}", "slurm", "memory must be above 0"),
        ("slurm: {time: 1, warning: 60}", "slurm", "warning must be less than the 60 seconds"),
        ("slurm: {options: {'a b': 1}}", "slurm", "'a b' is not the name of an option"),
    ],
)
def test_mistakes_are_reported(resources, text, name, message):
    resources.write_text(text)
    with pytest.raises(UserError) as refused:
        chosen.engine(name)
    assert message in str(refused.value)


def test_a_file_that_is_named_and_missing_is_reported(resources):
    resources.unlink()
    with pytest.raises(UserError, match=r"engines\.yaml"):
        chosen.engine()


# ---- an engine of one's own


def register(monkeypatch, value):
    """Let a distribution have an engine of the name mine."""
    found = EntryPoints([EntryPoint("mine", value, chosen.GROUP)])
    monkeypatch.setattr(chosen, "installed_entry_points", lambda: found)


@pytest.mark.slow
def test_a_strangers_engine_as_the_page_says(photographs, monkeypatch, tmp_path):
    (code,) = commands.blocks("python", (ROOT / "docs" / "machines.md").read_text("utf-8"))
    (tmp_path / "stranger.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    register(monkeypatch, "stranger:Mine")
    outcome = running.run(plan_of(photographs), chosen.engine("mine", 1), QUIET)
    assert len(outcome.results) == 2


def test_what_is_not_an_engine_is_refused(monkeypatch):
    for value, message in (("os:path", "is not a subclass"), ("nowhere:X", "cannot be loaded")):
        register(monkeypatch, value)
        with pytest.raises(UserError, match=message):
            chosen.engine("mine")


# ---- runs that are lost


class _Gone(Handle):
    def __init__(self, send, iteration):
        send({"state": "training", "start": 0, "iteration": iteration})

    def poll(self):
        self.lost = "its node was lost"
        return 1

    def stop(self, times):
        pass

    def close(self):
        return ""


class _Losing(Engine):
    """Loses each run a number of times, then does it."""

    name = "losing"

    def __init__(self, times, further=0):
        super().__init__()
        self.times, self.further, self.local, self.started = times, further, Local(), []

    def has_room(self, need):
        return self.local.has_room(need)

    def start(self, task, send):
        self.started.append(task.name)
        before = self.started.count(task.name)
        if before <= self.times:
            return _Gone(send, self.further * before)
        return self.local.start(task, send)


@pytest.mark.slow
def test_a_lost_run_is_started_again(photographs, monkeypatch):
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    engine = _Losing(2)
    assert len(running.run(plan_of(photographs), engine, QUIET).results) == 2
    assert len(engine.started) == 2 * 3


def test_a_run_that_is_always_lost_has_failed(photographs, monkeypatch):
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    engine = _Losing(100)
    outcome = running.run(plan_of(photographs, 1), engine, QUIET)
    assert outcome.failed[0].reason == "its node was lost; 4 times without getting further"
    assert len(engine.started) == 4


def test_a_run_that_gets_further_each_time_is_not_given_up(photographs, monkeypatch):
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    monkeypatch.setattr(plans_jobs, "_LOSSES", 1)
    (job,) = plan_of(photographs, 1).jobs
    for iteration in range(1, 9):
        job.iteration = iteration
        assert job.mark_lost("lost")
    assert job.mark_lost("lost") is False


# ---- the background


@pytest.mark.slow
def test_a_detached_command_outlives_its_terminal(photographs, tmp_path):
    given = settings(photographs, tmp_path / "runs", "train={iterations: 4}")
    command = [sys.executable, "-m", "zoo", "run", "ice_glyphs", *given, "--seeds", "0,1"]
    done = subprocess.run(
        [*command, "--detach"], capture_output=True, text=True, check=True, timeout=120
    )
    folders = [job.folder for job in planning.make(["ice_glyphs"], given, [], "0,1").jobs]
    pid = int(re.search(r"process (\d+)", done.stdout)[1])
    (log,) = (tmp_path / "runs").glob("detached-ice_glyphs-*.log")
    assert str(log) in done.stdout
    wait_for(lambda: all(folder.finished for folder in folders))
    wait_for(lambda: "Recall@K in percent" in log.read_text())
    assert f"kill {pid}" in done.stdout
    assert "--detach" not in done.stdout


# ---- signals of a batch system


def test_signals_before_a_time_limit_are_left_to_the_parent():
    code = (
        "from zoo.support import signals; import os, signal, subprocess, sys\n"
        "signals.leave_to_the_parent()\n"
        "for one in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "    os.kill(os.getpid(), one)\n"
        "    inner = 'import os; os.kill(os.getpid(), %d)' % one\n"
        "    subprocess.run([sys.executable, '-c', inner], check=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert signals.name_of(signal.SIGUSR1) == "SIGUSR1"
