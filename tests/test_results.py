"""Run folders: atomic, locked, and read back with suspicion."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from zoo import UserError
from zoo.results import RunFolder

RESULT = {
    "run": "r-d-s0",
    "config": "r",
    "digest": "d",
    "seed": 0,
    "dataset": {"name": "d"},
    "loss": None,
    "backbone": "b",
    "embedding_size": 2,
    "recall": {"1": 0.5},
    "seconds": {"training": 1.0},
}


@pytest.fixture
def folder(tmp_path):
    found = RunFolder(tmp_path / "run")
    found.path.mkdir()
    return found


def test_a_run_is_finished_when_its_result_is_there(folder):
    assert not folder.finished
    result = RESULT
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


HOSTILE = [
    "{}",
    "[1]",
    "[" * 100_000,
    '{"dataset": {"name": 1}, "recall": {}, "seed": 0}',
    *(
        json.dumps({**RESULT, key: value})
        for key, value in [
            ("seed", None),
            ("seed", "x"),
            ("config", []),
            ("digest", {}),
            ("recall", {"1": "x"}),
            ("recall", {"x": 0.5}),
            ("recall", {"1": 7.0}),
            ("recall", {}),
            ("seconds", {}),
            ("settings", []),
            ("settings", functools.reduce(lambda inner, _: {"x": [inner]}, range(60), {})),
        ]
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_result_is_refused_with_advice(folder, text):
    (folder.path / "result.json").write_text(text)
    with pytest.raises(UserError, match="not the result of a run; delete it, or run again with"):
        folder.result()


@pytest.mark.parametrize(
    "line", ["\xff\xfe", "[1]", "3", "{}", '{"iteration": "x"}', "[" * 100_000]
)
def test_damaged_metrics_do_not_stop_a_run(folder, line):
    (folder.path / "metrics.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    folder.append({"iteration": 1, "loss": 0.5})
    folder.rewind(5)
    assert folder.metrics() == [{"iteration": 1, "loss": 0.5}]


def test_a_folder_in_the_place_of_a_file(folder):
    (folder.path / "result.json").mkdir()
    with pytest.raises(UserError, match="cannot be removed"):
        folder.clear()
    (folder.path / ".x.tmp").mkdir()
    with folder.locked():
        pass


def test_a_name_that_no_folder_can_have():
    with pytest.raises(UserError, match="cannot be written"), RunFolder("a\0b").locked():
        pass
