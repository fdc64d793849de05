"""Reading and writing of files: only regular ones, never more than allowed."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from killed import killed_at_every_step
from places import ROOT

from zoo import errors
from zoo.support import files
from zoo.support.files import (
    check_folder,
    check_regular,
    check_stored,
    file_digest,
    open_regular,
    read_array,
    read_bytes,
    read_json,
    read_text,
    remove_left_over,
    replace_file,
)

READERS = [open_regular, check_regular, file_digest, lambda path: read_bytes(path, 100)]
READERS += [read_text, read_json, read_array, check_stored]


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


def test_a_text_is_as_python_opens_one(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\xc3\xa9")
    assert read_text(path, encoding="utf-8-sig") == path.read_text("utf-8-sig") == "a\nb\nc\né"
    path.write_bytes(b"\xff")
    assert read_text(path, errors="replace") == "\ufffd"
    with pytest.raises(UnicodeDecodeError):
        read_text(path)


def test_an_array_is_read_if_its_file_holds_what_the_header_promises(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5))
    assert read_array(path).tolist() == [0, 1, 2, 3, 4]
    with path.open("wb") as file:
        head = {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)}
        np.lib.format.write_array_header_1_0(file, head)
    with pytest.raises(ValueError, match="mmap length is greater than file ?size"):
        read_array(path)
    np.savez(tmp_path / "a.npz", a=np.arange(5))
    with pytest.raises(ValueError, match="not an .npy file"):
        read_array(tmp_path / "a.npz")


def test_a_zip_file_that_unpacks_to_more_than_it_is_is_refused_unread(tmp_path, monkeypatch):
    stored, bomb, overlapping = (tmp_path / name for name in ("stored", "bomb", "overlapping"))
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("a", bytes(5000))
        archive.writestr("b", b"b")
    check_stored(stored)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(1 << 20))
    with zipfile.ZipFile(overlapping, "w") as archive:
        archive.writestr("a", bytes(5000))
        archive.filelist.append(archive.filelist[0])  # its bytes count twice
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(ValueError, match="part 'data.pkl' is compressed"):
        check_stored(bomb)
    with pytest.raises(ValueError, match="larger than the file"):
        check_stored(overlapping)
    bomb.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(zipfile.BadZipFile):
        check_stored(bomb)


# ---- no other way to open a file

FOLDERS = ("zoo", "datasets", "models", "losses", "miners", "trackers")
OPENS = re.compile(
    "open|load|ZipFile|TarFile|read_text|read_bytes|read_index|load_file|fromfile|loadtxt|genfromtxt"
    "|loadmat|imread|open_memmap|memmap"
)
LOADERS = ("np", "numpy", "torch", "json", "pickle", "yaml", "cv2")

ASKED_BEFORE = {
    "zoo/evaluation/given.py": {"np.load"},
    "datasets/glyphs.py": {"np.load"},
    "models/_weights.py": {"torch.load"},
    "zoo/support/files.py": {"os.open", "np.load", "zipfile.ZipFile"},
    "zoo/data/cache.py": {"np.lib.format.open_memmap"},
    "zoo/data/decoding.py": {"Image.open"},
    "zoo/runs/checkpoint.py": {"torch.load", "zipfile.ZipFile"},
    "zoo/trained/network.py": {"np.load"},
}
"""Libraries that open a file themselves, after check_regular or check_stored has looked at it."""

OTHERS = {
    "datasets/cars196.py": {"loadmat"},  # of what read_bytes has read
    "zoo/cli/search.py": {"indices.open"},  # an index: its files are read in zoo/search/folder.py
    "zoo/plans/process.py": {"open"},  # its stdin
    "zoo/search/neighbours.py": {"faiss.read_index"},  # from a file that open_regular has opened
    "zoo/search/compressed.py": {"faiss.read_index", "np.load"},  # likewise
    "zoo/search/compressing.py": {"np.memmap"},  # of its own temporary file
    "zoo/search/parts.py": {"np.memmap"},  # of a file that open_regular has opened
    "zoo/data/unpack.py": {
        "os.open",
        "tarfile.open",
        "zipfile.ZipFile",
        "import_module(module).open",
    },
    # of an archive that open_regular has opened, and of what is made of it
    "zoo/support/yaml.py": {"path.open"},  # a pipe that the user names
    "zoo/support/environment.py": {
        "info.read_text",
        "limit.read_text",
    },  # /proc/cpuinfo, of the system
    "zoo/plans/running.py": {"live.open", "self.engine.open"},  # no files
    "zoo/cli/many/detached.py": {"engine.open"},  # likewise
    "zoo/report/render.py": {"(_HERE / 'static' / name).read_bytes"},  # of the package
}
"""What else opens something to read, or looks like it."""


def openings(path):
    """Yield how each call is written that opens a file to read it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or is_for_writing(node):
            continue
        of, _, name = ast.unparse(node.func).rpartition(".")
        is_ours = not of and name in ("read_text", "read_bytes")
        if OPENS.fullmatch(name) and not is_ours and (name != "load" or of in LOADERS):
            yield f"{of}.{name}".lstrip(".")


def is_for_writing(call):
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return any(0 < len(mode) <= 3 and (mode[0] in "wxa" or "+" in mode) for mode in texts)


def test_files_are_opened_to_be_read_by_zoo_files_alone():
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        known = ASKED_BEFORE.get(name, set()) | OTHERS.get(name, set())
        found = set(openings(path))
        assert found <= known, f"{name}: {found - known}: read a file with zoo.support.files"
        assert known <= found, f"{name}: {known - found}: is not there any more; take it off"
        if name in ASKED_BEFORE:
            assert re.search(r"\bcheck_(regular|stored)\(", path.read_text("utf-8")), name


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
    lock = files._lock

    def late(file, wait):
        if wait:
            remove_left_over(tmp_path / "file")
            monkeypatch.undo()
        lock(file, wait)

    monkeypatch.setattr(files, "_lock", late)
    replace_file(tmp_path / "file", lambda file: file.write(b"new"))
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names_in(tmp_path) == ["file"]


def test_a_name_that_is_too_long_is_refused_before_the_work(tmp_path):
    with pytest.raises(errors.UserError, match="cannot be written"):
        check_folder(tmp_path / ("x" * 240))
    assert names_in(tmp_path) == []
