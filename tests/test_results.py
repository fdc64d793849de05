"""Run folders: atomic, locked, and read back with suspicion."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from zoo import UserError
from zoo.results import RunFolder


@pytest.fixture
def folder(tmp_path):
    found = RunFolder(tmp_path / "run")
    found.path.mkdir()
    return found


def test_a_run_is_finished_when_its_result_is_there(folder):
    assert not folder.finished
    result = {"dataset": {"name": "d"}, "recall": {"1": 0.5}, "seed": 0}
    folder.finish(result, np.array([1, 2], dtype=np.int32))
    assert folder.finished
    assert folder.result() == result
    assert np.load(folder.path / "ranks.npy").tolist() == [1, 2]
    folder.clear()
    assert not folder.finished


def test_a_write_that_fails_leaves_the_old_file(folder, monkeypatch):
    folder.write("x", b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"x: cannot be written \(No space left on device\)"):
        folder.write("x", b"new")
    assert (folder.path / "x").read_bytes() == b"old"


def test_a_checkpoint_loads_without_running_anything(folder):
    folder.save_checkpoint({"iteration": 3, "w": torch.ones(2)})
    assert folder.load_checkpoint()["iteration"] == 3
    (folder.path / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="--restart"):
        folder.load_checkpoint()


def test_there_may_be_no_checkpoint(folder):
    assert folder.load_checkpoint() is None


def test_metrics_are_rewound_and_a_torn_line_is_dropped(folder):
    for i in (10, 20, 30):
        folder.append({"iteration": i, "loss": 1.0})
    with (folder.path / "metrics.jsonl").open("a") as handle:
        handle.write('{"iteration": 40, "lo')
    folder.rewind(20)
    assert [r["iteration"] for r in folder.metrics()] == [10, 20]


def test_one_process_at_a_time(folder):
    code = (
        "import sys; from zoo.results import RunFolder; from zoo import UserError\n"
        "try:\n"
        "    with RunFolder(sys.argv[1]).locked(): print('got it')\n"
        "except UserError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        inside = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "another process is at this run" in inside
    assert after == "got it\n"


def test_what_a_killed_process_left_is_cleared_away(folder):
    (folder.path / ".checkpoint.pt.1234.tmp").write_bytes(b"half")
    with folder.locked():
        assert not list(folder.path.glob("*.tmp"))


def test_an_error_inside_is_not_taken_for_one_of_the_folder(folder):
    with pytest.raises(PermissionError), folder.locked():
        raise PermissionError("of something else")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), RunFolder(tmp_path / "file").locked():
        pass
