"""Reading and writing of files: only regular ones, never more than allowed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from killed import killed_at_every_step

from zoo import _files
from zoo._files import (
    check_folder,
    check_regular,
    file_digest,
    open_regular,
    read_bytes,
    remove_left_over,
    replace_file,
)

READERS = [open_regular, check_regular, file_digest, lambda path: read_bytes(path, 100)]


@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_are_read(read, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    for path, why in [
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path, "is a folder"),
        (Path("/dev/zero"), "not a regular file"),
        (link, "not a regular file"),
        (tmp_path / "absent", "No such file"),
    ]:
        with pytest.raises(OSError, match=why) as error:
            read(path)
        assert error.value.filename == str(path)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than 99 bytes"):
        read_bytes(path, 99)


def test_the_digest_is_that_of_the_content(tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    assert file_digest(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@forks
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "[a] file"
    path.write_bytes(b"old")
    seen = set()
    for _ in killed_at_every_step(
        tmp_path, lambda: replace_file(path, lambda file: file.write(b"new"))
    ):
        seen.add(path.read_bytes())
        remove_left_over(path)
        assert names_in(tmp_path) == [path.name]
    assert seen == {b"old", b"new"}
    assert path.read_bytes() == b"new"


def test_what_is_swept_is_surely_left_over(tmp_path):
    path = tmp_path / "file"
    left = f".file.{'0' * 32}.tmp"
    others = [
        ".file.tmp",
        f".other.{'0' * 32}.tmp",
        f".file.{'0' * 31}.tmp",
        f"file.{'0' * 32}.tmp",
    ]
    for name in (left, *others):
        (tmp_path / name).touch()
    check_folder(path)
    assert names_in(tmp_path) == sorted(others)


def test_what_is_being_written_is_not_swept(tmp_path):
    path = tmp_path / "file"

    def write(file):
        file.write(b"new")
        remove_left_over(path)
        check_folder(path)

    replace_file(path, write)
    assert path.read_bytes() == b"new"
    assert names_in(tmp_path) == ["file"]


def test_what_is_swept_before_it_is_locked_is_opened_again(tmp_path, monkeypatch):
    lock = _files._lock

    def late(file, wait):
        if wait:
            remove_left_over(tmp_path / "file")
            monkeypatch.undo()
        lock(file, wait)

    monkeypatch.setattr(_files, "_lock", late)
    replace_file(tmp_path / "file", lambda file: file.write(b"new"))
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names_in(tmp_path) == ["file"]


def test_a_name_that_is_too_long_is_refused_before_the_work(tmp_path):
    with pytest.raises(_files.UserError, match="cannot be written"):
        check_folder(tmp_path / ("x" * 240))
    assert names_in(tmp_path) == []
