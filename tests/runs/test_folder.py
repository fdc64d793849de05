"""Run folders: atomic, locked, and read back with suspicion."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo import UserError
from zoo.errors import MachineError
from zoo.runs.folder import RunFolder

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
    folder.finish(result, np.array([1, 2], dtype=np.int32), np.array([5, 5]))
    assert folder.finished
    assert result.items() <= folder.result().items()
    assert np.load(folder.path / "ranks.npy").tolist() == [1, 2]
    assert folder.labels().tolist() == [5, 5]
    folder.clear()
    assert not folder.finished


def test_a_write_that_fails_leaves_the_old_file(folder, monkeypatch):
    folder.write("x", b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match=r"x: no room left on the disk; make room"):
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
        "import sys; from zoo.runs import RunFolder; from zoo import UserError\n"
        "try:\n"
        "    with RunFolder(sys.argv[1]).locked(): print('got it')\n"
        "except UserError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        inside = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "another process is working on this run" in inside
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
            ("recall", {"1" * 5_000: 0.5}),
            ("config", "\ud800"),
            ("git", {"\udfff": 1}),
            ("seconds", {"training": 10**400}),
            ("paper", {"recall": {"1": 10**400}}),
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
    with pytest.raises(UserError, match="cannot be written"):
        folder.clear()
    (folder.path / "result.json").rmdir()
    (folder.path / ".x.tmp").mkdir()
    with folder.locked():
        pass


@pytest.mark.parametrize("name", ["checkpoint.pt", "result.json", "ranks.npy", "metrics.jsonl"])
@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_is_in_the_way_is_said_at_the_start(folder, name, what):
    place = folder.path / name
    if what == "folder":
        place.mkdir()
    else:
        place.symlink_to(place)
    with pytest.raises(UserError, match=rf"{name}: the run has a file .* move it"), folder.locked():
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_the_way_out_of_a_full_disk(folder, monkeypatch, number):
    def full(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match=r"; make room and run again, or set output=FOLDER$"):
        folder.save_checkpoint({"iteration": 1})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_metrics_on_a_full_disk(folder):
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(MachineError, match=r"metrics.jsonl: no room left on the disk"):
        folder.append({"iteration": 1})


def test_a_byte_that_flipped_in_a_checkpoint_is_noticed(folder):
    state = {"iteration": 3, "w": torch.arange(50.0), "name": "x"}
    folder.save_checkpoint(state)
    path = folder.path / "checkpoint.pt"
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            found = folder.load_checkpoint()
        except UserError:
            refused += 1
        else:  # of padding, which holds nothing
            assert found["iteration"] == 3
            assert torch.equal(found["w"], state["w"])
            assert found["name"] == "x"
    assert refused
    flipped = whole.index(state["w"].numpy().tobytes()) + 5
    path.write_bytes(whole[:flipped] + b"!" + whole[flipped + 1 :])
    with pytest.raises(UserError, match="not a checkpoint that can be read .* --restart"):
        folder.load_checkpoint()


@pytest.mark.parametrize("iteration", ["x", -5, 1.5, True, None])
def test_an_iteration_that_is_none(folder, iteration):
    folder.save_checkpoint({"iteration": iteration})
    for read in (folder.load_checkpoint, folder.reached):
        with pytest.raises(UserError, match="start again with --restart"):
            read()


def test_a_message_about_a_result_cannot_steer_a_terminal(tmp_path):
    folder = RunFolder(tmp_path / "\x1b[31m")
    folder.path.mkdir()
    (folder.path / "result.json").write_text(json.dumps({**RESULT, "recall": {"\x1b[31m": 1}}))
    with pytest.raises(UserError) as error:
        folder.result()
    assert str(error.value).isprintable()


def test_a_name_that_no_folder_can_have():
    with pytest.raises(UserError, match="cannot be written"), RunFolder("a\0b").locked():
        pass


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match="no images"), folder.locked():
        raise UserError("no images")
    assert not folder.path.exists()
    with folder.locked():
        folder.write("config.yaml", b"seed: 0")
    assert not folder.path.exists()
    with folder.locked():
        folder.write("config.yaml", b"seed: 0")
        folder.append({"iteration": 1})
    assert (folder.path / "config.yaml").is_file()
