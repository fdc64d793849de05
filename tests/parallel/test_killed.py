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
from in_processes import call, lose_the_last

from zoo.errors import MachineError
from zoo.runs.folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc"),
    pytest.mark.usefixtures("few_glyphs"),
]
KILLS = int(os.environ.get("ZOO_TEST_KILLS", "1"))
SETTINGS = ("train.processes=2", "train.iterations=60", "train.precision=fp32")
SETTINGS += ("train.checkpoint_every=7", "train.log_every=1")


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


def test_stopped_and_killed_it_ends_as_if_nothing_had_been(tmp_path):
    """Asked to stop through the launcher and one process; killed anywhere, at any moment."""
    for to in ("launcher", "one process"):
        stop(tmp_path, to)
    draw, killed = random.Random(7), 0
    while True:
        process = start(tmp_path)
        workers = wait_for_workers(process)
        everybody, victim = [], None
        if killed < KILLS:
            time.sleep(draw.uniform(0, 12))
            victim = draw.choice([process.pid, *workers])
            everybody = [process.pid, *descendants(process.pid)]
            if process.poll() is None and is_alive(victim):
                os.kill(victim, signal.SIGKILL)
                killed += 1
        said = process.communicate()[0]
        assert_gone(everybody)
        assert "Traceback" not in said, said
        (folder,) = map(RunFolder, tmp_path.glob("*-s0"))
        folder.load_checkpoint()  # whole
        if folder.finished:
            break
        assert process.returncode == (-signal.SIGKILL if victim == process.pid else 1), said
        if victim in workers:
            errors = re.findall("^error: .*", said, re.MULTILINE)
            assert len(errors) == 1, said
            assert re.search(r"process \d of 2 was ended by SIGKILL", errors[0]), said
    assert killed > 0
    undisturbed = tmp_path / "undisturbed"
    start(undisturbed).communicate()
    (other,) = map(RunFolder, undisturbed.glob("*-s0"))
    assert folder.result()["recall"] == other.result()["recall"]


def test_the_killed_process_is_named_whatever_the_others_do():
    with pytest.raises(MachineError, match="process 2 of 2 was ended by SIGKILL, and the others"):
        call(2, lose_the_last)


def stop(output, to):
    """Start the run and ask it to stop when it has logged something new."""
    before = sum(path.read_text().count("\n") for path in output.glob("*/metrics.jsonl"))
    process = start(output)
    workers = wait_for_workers(process)
    wait_until(
        lambda: sum(p.read_text().count("\n") for p in output.glob("*/metrics.jsonl")) > before + 1
    )
    os.kill(process.pid if to == "launcher" else workers[1], signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1, said
    assert len(re.findall(r"saved at iteration \d+ of 60; to resume:", said)) == 1, said
    assert ("resumed  from iteration" in said) == (before > 0)
    assert_gone(workers)


def wait_until(condition):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("it did not happen")
