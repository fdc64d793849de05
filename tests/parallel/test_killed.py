"""Processes that are killed: one message, nothing left over, and the run goes on where it was."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zoo.runs.folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc"),
    pytest.mark.usefixtures("few_glyphs"),
]
KILLS = int(os.environ.get("ZOO_TEST_KILLS", "2"))
SETTINGS = ("train.processes=2", "train.iterations=60", "train.precision=fp32")


def start(output, *settings):
    command = [sys.executable, "-m", "zoo", "run", "ice_glyphs", *SETTINGS, *settings]
    return subprocess.Popen(
        [*command, f"output={output}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def descendants(pid):
    """Return the processes that a process started, and those that they started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_workers(process, count=2):
    """Return the processes of a run, once they are there."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        found = descendants(process.pid)
        if len(found) >= count:
            return found
        time.sleep(0.05)
    pytest.fail(f"no {count} processes: {process.communicate()[0] if process.poll() else ''}")


def assert_gone(pids):
    end = time.monotonic() + 90
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, "processes are left over"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def undisturbed(few_glyphs, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    said = start(output).communicate()[0]
    (folder,) = output.glob("*-s0")
    assert RunFolder(folder).finished, said
    return RunFolder(folder).result()


def test_whoever_is_killed_the_run_ends_as_if_nothing_had_been(undisturbed, tmp_path):
    """Any process, at any moment."""
    draw = random.Random(7)
    killed = 0
    while True:
        process = start(tmp_path, "train.checkpoint_every=7")
        workers = wait_for_workers(process)
        if killed < KILLS:
            time.sleep(draw.uniform(0, 14))
            victim = draw.choice([process.pid, *workers])
            everybody = [process.pid, *descendants(process.pid)]
            if process.poll() is None and is_alive(victim):
                os.kill(victim, signal.SIGKILL)
                killed += 1
        else:
            everybody, victim = [], None
        said = process.communicate()[0]
        assert_gone(everybody)
        assert "Traceback" not in said
        folders = [*tmp_path.glob("*-s0")]
        if folders:
            RunFolder(folders[0]).load_checkpoint()  # whole, or not there
            if RunFolder(folders[0]).finished:
                break
        assert process.returncode == (-signal.SIGKILL if victim == process.pid else 1), said
        if victim in workers:
            errors = re.findall("^error: .*", said, re.MULTILINE)
            assert len(errors) == 1, said
            assert re.search(r"process \d of 2 was ended by SIGKILL", errors[0]), said
    assert killed > 0
    assert RunFolder(folders[0]).result()["recall"] == undisturbed["recall"]


@pytest.mark.parametrize("to", ["launcher", "one process"])
def test_a_request_to_stop_saves_once(undisturbed, tmp_path, to):
    process = start(tmp_path)
    workers = wait_for_workers(process)
    (metrics,) = wait_until(lambda: [*tmp_path.glob("*/metrics.jsonl")])
    wait_until(lambda: metrics.read_text().count("\n") >= 3)
    os.kill(process.pid if to == "launcher" else workers[1], signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1, said
    assert len(re.findall(r"saved at iteration \d+ of 60; to resume:", said)) == 1, said
    assert_gone(workers)
    if to == "launcher":
        assert "resumed  from iteration" in start(tmp_path).communicate()[0]
        assert RunFolder(metrics.parent).result()["recall"] == undisturbed["recall"]


def wait_until(condition):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("it did not happen")
