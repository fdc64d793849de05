"""Reading and writing of files: only regular ones, never more than allowed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from zoo._files import check_regular, file_digest, open_regular, read_bytes

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
