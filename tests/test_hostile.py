"""Folders and names of strangers: no command waits for them, shows a traceback or is steered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from finished import run_on_photographs
from replicas import photographs

from zoo import UserError, config

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")

STEERING = "\x1b[31m\x1b]8;;x\x07y\x1b]52;c;eA==\x07\r\x07\b\x7f\x9b2J\u202e\u2066\u200f"
"""Colour, a link, the clipboard, the bell, C1, directions of text."""

UNSEEN = frozenset(STEERING) - frozenset("[31m]8;xy52c;eA=2J")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a finished run on hostile names, its photographs and an index."""
    here = tmp_path_factory.mktemp("hostile")
    photographs(here / "photos", {"train": 4, "test": 3}, each=4, size=(40, 36))
    for split in ("train", "test"):
        folder = here / "photos" / split / f"{split}1"
        (folder / "0.png").rename(folder / f"i{STEERING}.png")
        folder.rename(folder.with_name(f"{split}{STEERING}"))
    run_on_photographs(here)
    run_on_photographs(here, "seed=1")
    (run, _) = sorted((here / "runs").iterdir())
    record = json.loads((run / "result.json").read_text())
    record["config"] = f"n{STEERING}"
    record["dataset"]["folder"] = f"f{STEERING}"
    (run / "result.json").write_text(json.dumps(record))
    run.rename(run.with_name(f"a{STEERING}"))
    return here


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """Return a copy of the folder, in which the test is."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@contextmanager
def within(seconds):
    """Fail a test that hangs; the limit is far from what it takes."""

    def late(*_):
        raise AssertionError(f"not done within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- what is no file


REPORT = ["report", "-q", "--no-tsne", "--gallery"]
READERS = {
    "result.json": [["leaderboard"], ["compare", "RUN", "OTHER"], [*REPORT, 0]],
    "config.yaml": [["leaderboard"], ["embed", "RUN", "photos", "-o", "x.npz"], [*REPORT, 0]],
    "ranks.npy": [["compare", "RUN", "OTHER"], [*REPORT, 1]],
    "labels.npy": [["compare", "RUN", "OTHER"]],
    "checkpoint.pt": [["embed", "RUN", "photos", "-o", "x.npz"], [*REPORT, 1]],
    "metrics.jsonl": [["plot", "curves", "RUN", "-o", "curves.svg"], [*REPORT, 0]],
    "embeddings.npz": [["measure", "RUN"]],
    "validation.json": [["leaderboard"], [*REPORT, 0]],
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_among_the_files_of_a_run(name, place, command):
    first, second = sorted((place / "runs").iterdir())
    if name == "validation.json":
        (first / "result.json").unlink()
    (first / name).unlink(missing_ok=True)
    os.mkfifo(first / name)
    for arguments in READERS[name]:
        given = [{"RUN": first, "OTHER": second}.get(one, one) for one in arguments]
        with within(100):
            status, out, err = command(*given)
        assert status in (0, 2), err
        assert (status == 2) == err.startswith("error: "), (given, err)
        assert UNSEEN.isdisjoint(out + err)


def test_a_result_that_never_ends(place, command):
    first, _ = sorted((place / "runs").iterdir())
    (first / "result.json").unlink()
    (first / "result.json").symlink_to("/dev/zero")
    status, _, err = command("leaderboard")
    assert status == 0
    assert "not a regular file" in err


def weights(path):
    from zoo.models._weights import read_state

    read_state(path)


def safetensors(path):
    pytest.importorskip("safetensors.torch")
    from zoo.models.timm_family import _read

    path.rename(path.with_suffix(".safetensors"))
    _read(str(path.with_suffix(".safetensors")))


def matlab(path):
    from zoo.datasets.cars196 import _variable

    _variable(path, "annotations")


def listing(path):
    from zoo.datasets._benchmarks import lines_of

    lines_of(path)


def archive(path):
    from zoo._unpack import unpack

    unpack(path, path.with_name("into"), most_bytes=1, most_files=1)


def image(path):
    from zoo.decoding import load_rgb

    load_rgb(path)


def report(path):
    from zoo.report.output import Output

    path.with_name("report").mkdir()
    path.rename(path.with_name("report") / "report.json")
    Output(path.with_name("report"))


def names_of_an_index(path):
    from zoo._index_folder import read_names

    read_names(path, 1)


def about_an_index(path):
    from zoo._index_folder import read_meta

    read_meta(path.rename(path.with_name("meta.json")).parent)


def shape(path):
    from zoo._shape import load

    load(str(path.rename(path.with_suffix(".yaml"))))


def extended(path):
    path.with_name("x.yaml").write_text("extends: [ice_glyphs, ./file]\n")
    config.load(path.with_name("x.yaml"))


READ_ALONE = [weights, safetensors, matlab, listing, archive, image, report, shape, extended]
READ_ALONE += [names_of_an_index, about_an_index]


@pytest.mark.parametrize("read", READ_ALONE)
def test_what_is_no_file_is_refused_where_one_is_read(read, tmp_path):
    for number, put in enumerate((os.mkfifo, lambda path: path.symlink_to("/dev/zero"))):
        (tmp_path / str(number)).mkdir()
        put(tmp_path / str(number) / "file")
        with within(60), pytest.raises(UserError, match="regular|no such file|that is no report"):
            read(tmp_path / str(number) / "file")


# ---- what is more than it says


def test_a_checkpoint_that_is_a_bomb(place, command):
    first, _ = sorted((place / "runs").iterdir())
    with zipfile.ZipFile(first / "checkpoint.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(first / "checkpoint.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data + bytes(1 << 26) * name.endswith("data/0"))
    with monkeypatched_zip_reads() as reads:
        status, _, err = command("embed", first, "photos", "-o", "x.npz")
    assert status == 2
    assert "not a checkpoint that can be read" in err
    assert not reads


@contextmanager
def monkeypatched_zip_reads():
    """Yield the names of the parts of zip files that are unpacked meanwhile."""
    found, before = [], zipfile.ZipFile.open

    def opened(self, name, *arguments, **more):
        found.append(name)
        return before(self, name, *arguments, **more)

    zipfile.ZipFile.open = opened
    try:
        yield found
    finally:
        zipfile.ZipFile.open = before


def test_kept_embeddings_and_weights_that_are_bombs(tmp_path):
    from zoo.models._weights import read_state
    from zoo.trained import _read

    np.savez_compressed(tmp_path / "e.npz", embeddings=np.zeros((2, 3), np.float32), key="k")
    with monkeypatched_zip_reads() as reads:
        assert _read(tmp_path / "e.npz", "k", (2, 3)) is None
        with pytest.raises(UserError, match="no file of torch.save, or a damaged one"):
            read_state(tmp_path / "e.npz")
    assert not reads
    torch.save({"w": torch.zeros(1).expand(1 << 60)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="'w' has more values than are in the file"):
        read_state(tmp_path / "w.pth")


def test_a_header_of_safetensors_that_promises_too_much(tmp_path):
    pytest.importorskip("safetensors.torch")
    from zoo.models.timm_family import _read

    path = tmp_path / "w.safetensors"
    tensor = {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    for size, header in ((1 << 60, b"{}"), (None, json.dumps(tensor).encode())):
        path.write_bytes((size or len(header)).to_bytes(8, "little") + header + bytes(64))
        with pytest.raises(UserError, match="cannot be read as safetensors"):
            _read(str(path))
