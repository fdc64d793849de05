"""Many runs: planned, spread over devices, stopped and gone on with; most with processes that only
pretend to run."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from zoo import progress
from zoo.config import load_all
from zoo.errors import UserError
from zoo.plans import forecast, jobs, live, planning, running, scheduler
from zoo.plans.engines import child, local
from zoo.plans.engines.local import Local
from zoo.plans.engines.slots import DeviceSlot, DeviceSlots
from zoo.plans.jobs import Job
from zoo.progress import Reporter
from zoo.runs.folder import CHECKPOINT, CONFIG, LOG, RunFolder

QUIET = Reporter(quiet=True)

# What stands in for zoo.plans.process. The loss's scale says what becomes of a run.
FAKE = r"""
import json, os, signal, sys, time
from pathlib import Path

def tell(**event):
    print(json.dumps(event), flush=True)

text = "".join(iter(sys.stdin.readline, "...\n"))
scale = float(text.split("loss: ")[1].split("scale: ")[1].split(",")[0].split("}")[0])
with open("log", "a") as log:
    log.write(f"{sys.argv[1]} {os.environ.get('OMP_NUM_THREADS')} "
              f"{os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
tell(state="training", start=0, total=20)
if scale == 2:
    tell(failed="the data are not there")
    sys.exit(1)
if scale == 3:
    os.kill(os.getpid(), signal.SIGKILL)
if scale == 4:
    raise RuntimeError("a mistake in the program")
if scale == 5:
    os.write(1, b"{cut short")
    sys.exit(3)
if scale == 6:
    # Not by print, which may be at work when the signal comes.
    said = json.dumps({"stopped": "saved at iteration 7"}).encode() + b"\n"
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, said), os._exit(1)))
    tell(state="training", iteration=7, loss=1.5, recall=0.25)
    sys.stdin.read(1)  # what asks to stop
    os.write(1, said)
    os._exit(1)
if scale == 7:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(state="training", iteration=7)
    time.sleep(60)
if scale == 8:
    Path(f"here-{os.getpid()}").touch()
    until = time.monotonic() + 30
    while len(list(Path().glob("here-*"))) < 2:
        if time.monotonic() > until:
            tell(failed="nobody else came")
            sys.exit(1)
        time.sleep(0.01)
if scale == 10 and not Path("told").exists():  # another process was faster
    Path("told").touch()
    tell(busy=True)
    sys.exit(1)
if scale == 9:
    open("alone", "x").close()
    time.sleep(0.05)
    os.unlink("alone")
folder = Path("runs") / sys.argv[1]
folder.mkdir(parents=True, exist_ok=True)
seed = int(sys.argv[1].rpartition("-s")[2])
(folder / "result.json").write_text(json.dumps({
    "run": sys.argv[1], "config": "x", "digest": sys.argv[1].split("-")[1], "seed": seed,
    "dataset": {"name": "d"}, "loss": "ice", "backbone": "b", "embedding_size": 2,
    "recall": {"1": 0.5}, "seconds": {"training": 1.0},
}))
tell(finished=0.5)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def pretending(monkeypatch):
    monkeypatch.setattr(child, "PROGRAM", FAKE)
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    monkeypatch.setattr(jobs, "_LOOK", 0.05)


def plan(scales, seeds="0", *overrides):
    settings = ["device=cpu", "name=x", "train.iterations=20", *overrides]
    return planning.make(["ice_glyphs"], settings, [f"loss.scale={scales}"], seeds)


def started():
    """Return the names, threads and GPUs of the processes that were started, in their order."""
    log = Path("log")
    return [line.split() for line in log.read_text().splitlines()] if log.is_file() else []


def scale_of(job):
    return job.config.loss.arguments["scale"]


# ---- what becomes of runs


def test_one_that_fails_does_not_stop_the_others(pretending):
    outcome = running.run(plan("1,2,3,4,5,1.5"), Local(2), QUIET)
    assert [r["recall"]["1"] for r in outcome.results] == [0.5, 0.5]
    reasons = {scale_of(job): job.reason for job in outcome.failed}
    assert reasons[2] == "the data are not there"
    assert reasons[3].startswith("its process was ended by SIGKILL; the memory may have been full")
    assert reasons[4].startswith("its process ended with status 1")
    assert reasons[5] == "its process ended with status 3"
    assert outcome.unfinished == 0


def test_what_a_process_said_when_it_failed_is_kept(pretending):
    folders = {scale_of(job): job.folder for job in plan("4").jobs}
    (job,) = running.run(plan("4"), reporter=QUIET).failed
    assert str(folders[4].path / LOG) in job.reason
    assert "RuntimeError: a mistake in the program" in (folders[4].path / LOG).read_text()


def test_the_same_plan_does_what_is_left(pretending):
    running.run(plan("1,2"), reporter=QUIET)
    assert len(started()) == 2
    outcome = running.run(plan("1,2,1.5"), reporter=QUIET)
    assert len(outcome.results) == 2
    assert len(started()) == 4  # the first is finished
    planning.forget(plan("1,2,1.5"))
    assert not any(job.folder.finished for job in plan("1,2,1.5").jobs)


def test_a_damaged_result_is_a_failure(pretending):
    (job,) = plan("1").jobs
    job.folder.path.mkdir(parents=True)
    (job.folder.path / "result.json").write_text("{}")
    outcome = running.run(plan("1"), reporter=QUIET)
    assert "not the result of a run" in outcome.failed[0].reason
    assert not started()


def test_two_at_a_time_and_one_at_a_time(pretending):
    assert len(running.run(plan("8", "0,1"), Local(2), QUIET).results) == 2
    assert len(running.run(plan("9", "0,1,2"), reporter=QUIET).results) == 3


def test_they_share_the_threads(pretending, monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    running.run(plan("1", "0,1,2,3"), Local(3), QUIET)
    running.run(plan("1.5"), Local(3), QUIET)
    assert [threads for _, threads, _ in started()] == ["2", "2", "2", "2", "8"]


def test_their_threads_follow_from_the_plan_and_not_from_what_is_left(pretending, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    finished_run(plan("1").jobs[0], 1.0)
    running.run(plan("1", "0,1"), Local(2), QUIET)
    assert [threads for _, threads, _ in started()] == ["4"]


# ---- other commands on the same runs


def once_it_waits(monkeypatch, act):
    """Have something done once nothing but waiting is left."""
    tell = live.LiveTable.left_over

    def left_over(self, jobs):
        tell(self, jobs)
        act()

    monkeypatch.setattr(live.LiveTable, "left_over", left_over)


@pytest.mark.parametrize("at_a_time", [None, 2])
def test_a_run_of_another_process_is_left_to_it_and_counted(pretending, monkeypatch, at_a_time):
    made = plan("1", "0,1,2")
    theirs = ExitStack()
    theirs.enter_context(made.jobs[0].folder.locked())

    def finish():
        text = (made.jobs[1].folder.path / "result.json").read_text()
        mine = text.replace("-s1", "-s0").replace('"seed": 1', '"seed": 0')
        (made.jobs[0].folder.path / "result.json").write_text(mine)
        theirs.close()

    once_it_waits(monkeypatch, finish)
    console = Console(width=200, file=io.StringIO())
    outcome = running.run(made, Local(at_a_time), Reporter(console))
    assert len(outcome.results) == 3
    assert (outcome.failed, outcome.unfinished) == ((), 0)
    assert sorted(name for name, _, _ in started()) == [job.name for job in made.jobs[1:]]
    said = console.file.getvalue()
    assert f"waiting for another process to finish {made.jobs[0].name}; Ctrl-C stops" in said
    assert said.count("in another process") == 1


def test_a_run_that_another_process_gives_up_is_taken_up(pretending, monkeypatch):
    made = plan("1", "0,1")
    theirs = ExitStack()
    for job in made.jobs:
        theirs.enter_context(job.folder.locked())
    once_it_waits(monkeypatch, theirs.close)
    console = Console(width=200, file=io.StringIO())
    assert len(running.run(made, reporter=Reporter(console)).results) == 2
    assert len(started()) == 2
    assert "waiting for another process to finish 2 runs" in console.file.getvalue()


def test_a_run_that_another_process_took_a_moment_before_is_left_to_it(pretending):
    outcome = running.run(plan("10,1"), reporter=QUIET)
    assert [scale_of(job) for job in outcome.failed] == []
    assert [name for name, _, _ in started()].count(plan("10").jobs[0].name) == 2
    assert len(outcome.results) == 2


def test_ctrl_c_ends_the_waiting(pretending, monkeypatch):
    once_it_waits(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    made = plan("1")
    with made.jobs[0].folder.locked():
        assert running.run(made, reporter=QUIET).unfinished == 1


def test_a_chosen_run_that_another_process_tests_is_waited_for(pretending, monkeypatch):
    made = plan("1")
    (job,) = made.jobs
    theirs = ExitStack()
    theirs.enter_context(job.folder.locked())
    monkeypatch.setattr(running.time, "sleep", lambda _: theirs.close())
    console = Console(width=200, file=io.StringIO())
    running._select(job, {}, Reporter(console))
    assert "another process is working on this run; waiting for it" in console.file.getvalue()


def test_a_restart_clears_all_runs_or_none(command, pretending):
    made = plan("1", "0,1")
    running.run(made, reporter=QUIET)
    with made.jobs[1].folder.locked(), pytest.raises(UserError, match="another process"):
        planning.forget(made)
    assert all(job.folder.finished for job in made.jobs)


def test_runs_that_cannot_be_written_fail_without_a_process(pretending):
    Path("runs").write_text("a file, where the folder of runs should be")
    outcome = running.run(plan("1", ",".join(map(str, range(100)))), reporter=QUIET)
    assert not started()
    assert len(outcome.failed) == 100
    assert all("cannot be written" in reason for reason in outcome.failures())


# ---- stopping


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_them_save_and_starts_no_more(pretending, monkeypatch, signum):
    told = []

    def tick(self):
        at_work = [job for job in self._jobs if job.iteration == 7]
        if len(at_work) == 2 and not told:
            told.append(len(at_work))
            signal.raise_signal(signum)

    monkeypatch.setattr(live.LiveTable, "tick", tick)
    before = signal.getsignal(signum)
    outcome = running.run(plan("6", "0,1,2"), Local(2), QUIET)
    assert signal.getsignal(signum) is before
    assert told
    assert outcome.unfinished == 3
    assert not outcome.failed
    assert len(started()) == 2


def test_who_does_not_listen_is_killed_the_third_time(pretending, monkeypatch):
    def tick(self):
        if any(job.iteration == 7 for job in self._jobs):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(live.LiveTable, "tick", tick)
    assert running.run(plan("7"), reporter=QUIET).unfinished == 1


def test_one_that_somebody_else_stops_has_failed(pretending, monkeypatch):
    children = []
    start = child.Child.__init__

    def init(self, task, *arguments):
        start(self, task, *arguments)
        children.append((task.name, self))

    def look(self):
        for name, one in children:
            if any(job.name == name and job.iteration == 7 for job in self._jobs):
                one._process.terminate()

    monkeypatch.setattr(child.Child, "__init__", init)
    monkeypatch.setattr(live.LiveTable, "tick", look)
    outcome = running.run(plan("6,1"), reporter=QUIET)
    assert outcome.failed[0].reason == "saved at iteration 7, by a signal from outside"
    assert len(outcome.results) == 1


# ---- devices


def acquire(slots, *wanted):
    return [slot and slot.devices[0] for slot in map(slots.acquire, wanted)]


def test_each_gpu_has_one_run():
    slots = DeviceSlots(gpus=2)
    assert acquire(slots, "auto", "cuda", "auto") == ["cuda:0", "cuda:1", None]
    slots.release(DeviceSlot(("cuda:1",), {}))
    assert slots.acquire("auto") == (("cuda:1",), {"CUDA_VISIBLE_DEVICES": "1"})
    assert slots.at_a_time(["auto"] * 5) == 2
    assert slots.at_a_time(["auto"]) == 1


def test_more_runs_than_gpus_are_spread_evenly():
    slots = DeviceSlots(gpus=2, limit=3)
    assert acquire(slots, *["auto"] * 4) == ["cuda:0", "cuda:1", "cuda:0", None]
    assert slots.at_a_time(["auto"] * 5) == 3


def test_a_run_of_several_processes_has_a_gpu_for_each():
    slots = DeviceSlots(gpus=4)
    two = slots.acquire("auto", 2)
    assert two == (("cuda:0", "cuda:1"), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert slots.acquire("auto", 3) is None
    assert slots.acquire("auto", 2).devices == ("cuda:2", "cuda:3")
    slots.release(two)
    assert slots.acquire("auto").devices == ("cuda:0",)
    assert DeviceSlots(gpus=4).at_a_time(["auto"] * 5, 2) == 2
    assert DeviceSlots(gpus=0).acquire("cpu", 2) == (("cpu",), {})
    assert DeviceSlots(gpus=0, limit=2).at_a_time(["cpu"] * 3, 2) == 2


def test_a_run_that_names_its_device_has_that():
    slots = DeviceSlots(gpus=2)
    assert slots.acquire("cuda:1") == (("cuda:1",), {})
    assert acquire(slots, "cuda:1", "auto", "cpu", "cpu") == [None, "cuda:0", "cpu", None]


def test_without_a_gpu_one_is_at_work_unless_more_are_wanted():
    assert acquire(DeviceSlots(gpus=0), "auto", "auto") == ["auto", None]
    assert acquire(DeviceSlots(gpus=0, limit=2), "cpu", "cpu", "cpu") == ["cpu", "cpu", None]
    assert DeviceSlots(gpus=0).at_a_time(["cpu", "cpu"]) == 1


def test_only_gpus_that_are_to_be_seen_are_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8932f937")
    slots = DeviceSlots(gpus=2)
    found = [slots.acquire("auto").environment["CUDA_VISIBLE_DEVICES"] for _ in range(2)]
    assert found == ["3", "GPU-8932f937"]


def test_processes_see_their_gpu_only(pretending, monkeypatch):
    monkeypatch.setattr(local, "_gpus_for", lambda _: 2)
    made = planning.make(["ice_glyphs"], ["name=x", "device=auto"], ["loss.scale=8"], "0,1")
    assert len(running.run(made, reporter=QUIET).results) == 2
    assert sorted(gpu for _, _, gpu in started()) == ["0", "1"]


# ---- plans


def test_a_run_is_planned_once():
    made = planning.make(["ice_glyphs", "ice_glyphs"], [], ["loss.scale=64,64.0,32"])
    assert len(made.jobs) == 2
    assert made.repeats == 4
    assert "2 runs: 2 new; 4 duplicates left out" in shown(planning.table(made))


def test_configs_under_one_name_are_told_apart():
    plan = planning.make(["ice_glyphs", "rll_glyphs", "cce_glyphs"], ["name=x"], [], "0,1")
    assert [job.settings for job in plan.jobs][::2] == [
        "ice_glyphs seed=0",
        "rll_glyphs seed=0",
        "cce_glyphs seed=0",
    ]
    plan = planning.make(["ice_glyphs", "rll_glyphs"])
    assert [job.settings for job in plan.jobs] == ["", ""]


def test_all_problems_of_all_configs_come_at_once():
    Path("a.yaml").write_text("extends: ice_glyphs\nloss: {scael: 1}\n")
    Path("b.yaml").write_text("extends: ice_glyphs\nsweep: {loss.scale: 3}\n")
    with pytest.raises(UserError) as caught:
        planning.make(["a.yaml", "b.yaml", "nowhere", "ice_glyphs"], ["trian=3"])
    lines = str(caught.value).split("\n")
    assert [line.split(":")[0] for line in lines[:3]] == ["a.yaml", "command line", "b.yaml"]
    assert lines[3].startswith("there is no config 'nowhere', neither as a file nor shipped")
    assert len(lines) == 4


def test_configs_and_settings_may_come_in_any_order():
    given = ["seed=1", "ice_glyphs", "loss.scale", "x/seed.yaml", "loss.scale=3"]
    wanted = (["ice_glyphs", "x/seed.yaml"], ["seed=1", "loss.scale", "loss.scale=3"])
    assert planning.sort(given) == wanted
    with pytest.raises(UserError, match="name a config"):
        planning.sort(["loss.scale=3"])


def shown(what):
    console = Console(width=200, file=io.StringIO())
    console.print(what)
    return console.file.getvalue()


def test_a_plan_tells_how_far_each_run_is(pretending):
    import torch

    done, half, broken, new = plan("1,2,3,1.5").jobs
    running.run(plan("1"), reporter=QUIET)
    for job, state in ((half, {"iteration": 11}), (broken, 3)):
        job.folder.path.mkdir(parents=True)
        torch.save(state, job.folder.path / CHECKPOINT)
    (broken.folder.path / CHECKPOINT).write_bytes(b"nothing of the kind")
    lines = shown(planning.table(plan("1,2,3,1.5"))).splitlines()
    assert [line.rstrip().split("  ")[-1] for line in lines[1:5]] == [
        "finished",
        "to resume at iteration 11",
        "damaged, needs --restart",
        "new",
    ]
    assert lines[1].startswith(done.name)
    assert "loss.scale=1.5 seed=0" in lines[4]
    assert lines[5].rstrip() == "4 runs: 1 finished, 1 to resume, 1 damaged, 1 new"
    assert new.name in lines[4]


def test_settings_are_shown_as_they_are_given():
    variants = load_all("ablation/batch_content_sop")
    made = planning.make(["ablation/batch_content_sop"])
    assert made.jobs[1].settings == "sampler.classes=60 sampler.per_class=3"
    assert len(variants) == len(made.jobs)
    made = planning.make(["ice_glyphs"], [], ["loss=ice,{name: rll, alpha: 1.5}", "miner=null"])
    assert made.jobs[1].settings == "loss={name: rll, alpha: 1.5} miner=null"


# ---- estimates


def test_a_forecast_of_the_unknown_says_so():
    text = shown(planning.forecast(plan("1,2")))
    assert text.count("unknown") == 3
    assert "time: unknown; a finished run on the same data and network would show it" in text
    assert not Path("runs").exists()
    # 114 thousand numbers of 4 bytes, and two more of each that Adam keeps.
    (size, other) = (forecast.Estimator([j.config]).of(j.config, 0).size for j in plan("1,2").jobs)
    assert f"{size / 1e6:.3g}" == f"{other / 1e6:.3g}" == "1.37"
    assert text.count(" 1.4 MB") == 2
    assert "disk: about 2.7 MB; " in text


def finished_run(job, seconds, device="cpu", iterations=20):
    """Leave what a run leaves that took so long."""
    job.folder.path.mkdir(parents=True)
    (job.folder.path / CONFIG).write_text(json.dumps(job.config.resolved()))
    (job.folder.path / CHECKPOINT).write_bytes(b"x" * 5_000_000)
    result = {
        "run": job.name,
        "config": "x",
        "digest": "0" * 8,
        "seed": 0,
        "dataset": {"name": "d"},
        "loss": "ice",
        "backbone": "b",
        "embedding_size": 2,
        "recall": {"1": 0.5},
        "iterations": iterations,
        "seconds": {"training": seconds, "evaluation": 10.0},
        "hardware": {"device": device},
    }
    (job.folder.path / "result.json").write_text(json.dumps(result))


def test_a_forecast_goes_by_what_earlier_runs_took(monkeypatch):
    import torch

    from zoo.support import environment

    monkeypatch.setattr(environment, "device_name", lambda _: "AMD EPYC, 8 threads")
    finished_run(plan("1").jobs[0], 100.0, "AMD EPYC, 2 threads")
    half = plan("2").jobs[0]
    half.folder.path.mkdir(parents=True)
    torch.save({"iteration": 15}, half.folder.path / CHECKPOINT)
    text = shown(planning.forecast(plan("1,2,3"), Local(2)))
    lines = [line.split("  ") for line in text.splitlines()]
    assert [line[-2].strip() for line in lines[2:4]] == ["0:00:35", "0:01:50"]
    assert [line[-1].strip() for line in lines[2:4]] == ["5.0 MB", "5.0 MB"]
    assert "time: about 0:01:12, 2 at a time" in text
    assert "disk: about 10.0 MB; " in text
    other = shown(planning.forecast(plan("1", "0", "sampler.classes=8")))
    assert "about 0:01:50" in other  # of another batch
    assert "unknown" in shown(planning.forecast(plan("1", "0", "model.backbone.width=8")))
    monkeypatch.setattr(environment, "device_name", lambda _: "NVIDIA H100")
    assert "unknown" in shown(planning.forecast(plan("3")))


def test_a_network_that_cannot_be_weighed_is_unknown():
    made = planning.make(["ice_glyphs"], ["model.backbone=torchvision.vit_b_16"])
    assert "unknown" in shown(planning.forecast(made))
    made = planning.make(["ice_glyphs"], ["train.iterations=0"])
    assert "0 bytes" in shown(planning.forecast(made))


# ---- what is shown meanwhile


def job(name, state="waiting", **known):
    (variant,) = load_all("ice_glyphs", [f"name={name}"])
    found = Job(variant.config, "loss.scale=3", RunFolder(Path("runs") / name), state)
    for key, value in known.items():
        setattr(found, key, value)
    return found


def board(rows, height, terminal=True):
    console = Console(
        width=120, height=height, file=io.StringIO(), force_terminal=terminal, color_system=None
    )
    return live.LiveTable(rows, console), console


def test_the_live_table():
    rows = [
        job("a", "finished", iteration=600, loss=0.5, recall=0.875),
        job("b", "running", doing="training"),
        job("c", "failed", reason="x"),
        job("d"),
    ]
    rows[1].update({"state": "training", "start": 100, "total": 600})
    rows[1]._started = (time.monotonic() - 10, 100)
    rows[1].update({"iteration": 300, "loss": 0.0, "recall": None})
    made, console = board(rows, 30)
    console.print(made.table())
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["run", "settings", "state", "iteration", "loss", "R@1", "left"]
    assert lines[1].split()[1:] == ["loss.scale=3", "finished", "600/600", "0.5000", "87.50"]
    assert lines[2].split()[1:] == ["loss.scale=3", "training", "300/600", "0.0000", "0:00:15"]
    assert lines[3].split()[1:] == ["loss.scale=3", "failed"]
    assert "4 runs: 1 finished, 1 running, 1 failed, 1 waiting" in lines[5]


def test_of_many_runs_the_live_table_shows_what_matters():
    rows = [job(f"r{i}", "finished") for i in range(20)]
    rows[13].state, rows[17].state, rows[19].state = "failed", "running", "waiting"
    made, console = board(rows, 12)
    console.print(made.table())
    text = console.file.getvalue()
    assert [line.split("-")[0] for line in text.splitlines()[1:5]] == ["r0", "r13", "r17", "r19"]
    assert "and 16 more; 20 runs: 17 finished" in text


def test_a_terminal_gets_the_table_and_a_file_gets_lines(pretending):
    for terminal in (True, False):
        console = Console(width=120, file=io.StringIO(), force_terminal=terminal)
        seed = "1" if terminal else "2"
        running.run(plan("1,2", seed), reporter=Reporter(console))
        text = console.file.getvalue()
        assert ("\x1b[" in text) is terminal
        if not terminal:
            lines = text.splitlines()
            states = ["starting", "training", "finished", "starting", "training", "failed"]
            assert [line.split()[0] for line in lines] == states
            assert lines[2].endswith("loss.scale=1 seed=2  20/20  R@1 50.00")
            assert lines[5].endswith("the data are not there")
        else:
            assert "2 runs: 1 finished, 1 failed" in text


def test_lines_tell_now_and_then_how_it_is_going(monkeypatch):
    made, console = board([job("a", "running", doing="training", iteration=3)], 30, terminal=False)
    made.tick()
    assert console.file.getvalue() == ""
    monkeypatch.setattr(live, "_EVERY", 0.0)
    made.tick()
    assert "training" in console.file.getvalue()
    assert "3/600" in console.file.getvalue()


def test_a_slow_run_says_now_and_then_how_far_it_is(monkeypatch):
    """Without its loss, to look at which would make a GPU wait."""
    console = Console(width=120, file=io.StringIO())
    told = Reporter(console)
    with told.training(0, 5) as report:
        report.advance()
        assert console.file.getvalue() == ""
        report.show(1, loss=0.5)
        monkeypatch.setattr(progress, "_EVERY", -1.0)
        report.advance()
        report.advance()
    assert list(told.track("ab", 2, "evaluating")) == ["a", "b"]
    first, second, *rest = console.file.getvalue().splitlines()
    assert first.startswith("1/5")
    assert "loss 0.5000" in first
    assert second.startswith("2/5")
    assert "loss" not in second
    assert rest == ["evaluating  1/2", "evaluating  2/2"]


# ---- the command


SETTINGS = ["name=x", "device=cpu", "train.iterations=20"]


def test_the_command_ends_with_the_leaderboard_and_the_reasons(command, pretending):
    status, out, err = command("run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=1,2,4")
    assert status == 1
    assert out.count("50.00") == 1
    assert "3 runs: 3 new" in err
    names = {scale_of(j): j.name for j in plan("1,2,4").jobs}
    assert f"error: {names[2]}: the data are not there\n" in err
    assert f"error: {names[4]}: its process ended with status 1" in err
    assert "Traceback" not in err
    status, out, err = command("run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=1,1.5")
    assert (status, out.count("50.00")) == (0, 2)
    assert "2 runs: 1 finished, 1 new" in err
    again = command("run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=1,1.5", "--quiet")
    assert again == (0, out, "")
    assert len(started()) == 4
    command("run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=1,1.5", "--restart", "-q")
    assert len(started()) == 6


def test_the_same_reason_is_told_once(command, pretending):
    _, _, err = command("run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=2", "--seeds", "0,1")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.count("x-") == 2


def test_the_command_says_how_to_go_on(command, pretending, monkeypatch):
    def tick(self):
        if any(job.iteration == 7 for job in self._jobs) and not once:
            once.append(signal.raise_signal(signal.SIGINT))

    once = []
    monkeypatch.setattr(live.LiveTable, "tick", tick)
    arguments = ["run", "ice_glyphs", *SETTINGS, "--sweep", "loss.scale=1, 6", "--restart"]
    status, out, err = command(*arguments)
    assert status == 1
    assert out.count("50.00") == 1
    assert err.splitlines()[-1] == (
        "stopped: 1 of 2 runs are not finished; to resume: zoo run ice_glyphs name=x device=cpu "
        "train.iterations=20 --sweep 'loss.scale=1, 6'"
    )


def test_a_dry_run_runs_nothing(command):
    status, out, err = command("run", "ice_glyphs", "rll_glyphs", "--seeds", "0,1", "--dry-run")
    assert (status, err) == (0, "")
    assert "4 runs: 4 new" in out
    assert "4 runs" in command("run", "ice_glyphs", "--seeds", "0,1,2,3", "--dry-run")[1]
    assert "\n1 run: 1 new\n" in command("run", "ice_glyphs", "--dry-run")[1]
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_dry_run_of_a_restart_forgets_what_is_there(command, pretending):
    settings = ["ice_glyphs", *SETTINGS, "loss.scale=1", "--dry-run"]
    command(*("run", *settings[:-1]))
    assert "1 run: 1 finished" in command("run", *settings)[1]
    assert "1 run: 1 new" in command("run", *settings, "--restart")[1]


def test_a_forecast_counts_the_cache_and_what_is_missing(command):
    _, out, _ = command("run", "ice_sop", "model.backbone.weights=here.pth", "--dry-run")
    assert "cache: about 23.6 GB for sop, written once" in out
    assert "missing: model.backbone.weights=here.pth" in out
    _, out, _ = command(
        "run", "ice_folder", "dataset.root=nowhere", "images.cache=true", "--dry-run"
    )
    assert "missing: dataset.root=nowhere" in out
    assert re.search("cache: [0-9.]+ kB per image, written once", out)


def test_a_config_from_a_pipe(command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = b"extends: ice_glyphs\ntrain: {iterations: 20}\nname: piped\n"
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(text,))
    writer.start()
    status, out, err = command("run", tmp_path / "pipe", "--seeds", "1", "--dry-run")
    writer.join()
    assert (status, err) == (0, "")
    assert "piped" in out


def test_a_process_whose_parent_has_gone_before_it_was_told_what_to_do_ends():
    for said in (b"", b"seed: 0\n"):
        done = subprocess.run(
            [sys.executable, "-c", child.PROGRAM, "x"], input=said, timeout=60, check=False
        )
        assert done.returncode == 1


def test_nothing_is_run_if_one_config_is_wrong(command, pretending):
    Path("bad.yaml").write_text("extends: ice_glyphs\nloss: {scael: 1}\n")
    status, _, err = command("run", "ice_glyphs", "bad.yaml", "device=cpu")
    assert status == 2
    assert err == "error: bad.yaml:2: loss.scael: unknown argument of ice; did you mean scale?\n"
    assert not started()


def test_config_prints_a_sweep(command):
    status, out, _ = command("config", "ablation/scale_glyphs")
    assert status == 0
    assert "sweep:\n  loss.scale: [1, 16, 32, 48, 64, 80]\n" in out


def test_help_is_short(command):
    out = command("run", "--help")[1]
    assert len(out.splitlines()) <= 45
    for option in ("--seeds", "--sweep", "--jobs", "--dry-run"):
        assert option in out
