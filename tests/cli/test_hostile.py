"""Folders and names of strangers: no command waits for them, shows a traceback or is steered."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
import warnings
import zipfile
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from finished import run_on_photographs
from replicas import photographs
from rich.console import Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import zoo
from zoo import UserError, checks, config, leaderboard, registry
from zoo.progress import Terminal, echo
from zoo.registry import components
from zoo.runs import identity
from zoo.runs.folder import RunFolder
from zoo.support import yaml
from zoo.support.text import harmless

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")

STEERING = "\x1b[31m\x1b]8;;x\x07y\x1b]52;c;eA\x07\r\x07\b\x7f\x9b2J\u202e\u2066\u200f"
"""Colour, a link, the clipboard, the bell, C1, directions of text."""

UNSEEN = frozenset(STEERING) - frozenset("[31m]8;xy52c;eA2J")


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
    write_result(run, record)
    run.rename(run.with_name(f"a{STEERING}"))
    return here


def write_result(run, record):
    """Write a result with the digests that go with it, as somebody would who means harm."""
    record["files"] = identity.digests(run, record["files"])
    (run / "result.json").write_text(json.dumps(identity.seal(record)))


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
@pytest.mark.slow
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
    from zoo.models._weights import read_state

    path.rename(path.with_suffix(".safetensors"))
    read_state(path.with_suffix(".safetensors"))


def matlab(path):
    from zoo.datasets.cars196 import _variable

    _variable(path, "annotations")


def listing(path):
    from zoo.datasets._benchmarks import lines_of

    lines_of(path)


def archive(path):
    from zoo.data.unpack import unpack

    unpack(path, path.with_name("into"), most_bytes=1, most_files=1)


def image(path):
    from zoo.data.decoding import load_rgb

    load_rgb(path)


def report(path):
    from zoo.report.output import Output

    path.with_name("report").mkdir()
    path.rename(path.with_name("report") / "report.json")
    Output(path.with_name("report"))


def names_of_an_index(path):
    from zoo.search.folder import read_names

    about = mock.Mock(count=1)
    about.names.bytes = about.names.sha256 = None
    read_names(path, about)


def about_an_index(path):
    from zoo.search.folder import read_meta

    read_meta(path.rename(path.with_name("meta.json")).parent)


def shape(path):
    from zoo.tables.shapes import load

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
        refused = pytest.raises(UserError, match="regular|no such file|other files than a report")
        with within(60), refused:
            read(tmp_path / str(number) / "file")


# ---- what is more than it says


def test_a_checkpoint_that_is_a_bomb(place, command):
    first, _ = sorted((place / "runs").iterdir())
    with zipfile.ZipFile(first / "checkpoint.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(first / "checkpoint.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data + bytes(1 << 26) * name.endswith("data/0"))
    write_result(first, json.loads((first / "result.json").read_text()))
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
    from zoo.trained.network import _read

    np.savez_compressed(tmp_path / "e.npz", embeddings=np.zeros((2, 3), np.float32), key="k")
    with monkeypatched_zip_reads() as reads:
        assert _read(tmp_path / "e.npz", "k", (2, 3)) is None
        with pytest.raises(UserError, match="is not a file of torch.save, or is damaged"):
            read_state(tmp_path / "e.npz")
    assert not reads
    torch.save({"w": torch.zeros(1).expand(1 << 60)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="'w' has more values than are in the file"):
        read_state(tmp_path / "w.pth")


def test_a_header_of_safetensors_that_promises_too_much(tmp_path):
    from zoo.models._weights import read_state

    path = tmp_path / "w.safetensors"
    tensor = {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    for size, header in ((1 << 60, b"{}"), (None, json.dumps(tensor).encode())):
        path.write_bytes((size or len(header)).to_bytes(8, "little") + header + bytes(64))
        with pytest.raises(UserError, match="cannot be read as safetensors"):
            read_state(path)


# ---- what steers a terminal


def test_a_terminal_gets_the_escapes_of_rich_alone(monkeypatch):
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", width=500)
    table = Table("[bold]head[/]", STEERING)
    table.add_row(STEERING, "[red]x[/]")
    for shown in (table, STEERING, Text(STEERING), Group(STEERING, Text(STEERING))):
        console.print(shown)
    console.print(STEERING, markup=False, soft_wrap=True)
    with Progress(console=console) as bar:
        bar.add_task(STEERING, total=1)
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())  # colours, the cursor
    assert UNSEEN.intersection(written) <= {"\r"}  # of the bar
    assert written.count(harmless(STEERING)) == 5  # rich drops some from a Text, such as a bell
    lines = [line for line in written.splitlines() if line.startswith(("┃", "│"))]
    assert len({len(line) for line in lines}) == 1


def test_data_on_a_terminal_is_harmless_and_elsewhere_as_it_is(monkeypatch, capsys):
    echo(STEERING)
    assert capsys.readouterr().out == STEERING + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    echo(f"a\tb\u00a0{STEERING}", end="")
    assert capsys.readouterr().out == "a\tb\u00a0" + harmless(STEERING)


def test_yaml_that_is_printed_steers_nothing_and_loads_again():
    for text in ("ä", STEERING, "\u202e"):
        written = yaml.dump({"a": text})
        assert UNSEEN.isdisjoint(written)
        assert yaml.parse(written, "", []).plain() == {"a": text}
    assert "ä" in yaml.dump({"a": "ä"})


def test_a_warning_steers_nothing(command, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda _: warnings.warn(STEERING, stacklevel=1) or [])
    _, _, err = command("list", "miners")
    assert err.startswith("warning: \\x1b[31m")
    assert UNSEEN.isdisjoint(err)


def test_a_mistake_in_the_program_is_a_traceback_that_steers_nothing(command, monkeypatch):
    def fails(*_):
        raise KeyError(STEERING) from RuntimeError(f"from {STEERING}")

    monkeypatch.setattr(registry, "names", fails)
    status, out, err = command("list")
    assert (status, out) == (1, "")
    assert "Traceback" in err
    assert f"from {harmless(STEERING)}" in err
    assert UNSEEN.isdisjoint(err)


class Stranger(torch.nn.Module):
    """A loss that says what it likes."""

    def __init__(self, margin: str = STEERING) -> None:
        super().__init__()

    def forward(self, *_):
        raise RuntimeError(f"said {STEERING}")


Stranger.__doc__ = f"A loss {STEERING} that says what it likes."
Stranger.paper = f"Somebody {STEERING} 2026, Something"

COMMANDS = """
    list
    show losses STRANGER
    show losses nothing!
    check STRANGER
    check STRANGER margin!=3
    config x!.yaml
    config bad!.yaml
    config ice_glyphs name=! loss.scale=!
    run x!.yaml --dry-run
    run bad!.yaml
    run ice_folder dataset.root=photos loss=QUOTED device=cpu WITHOUT
    run ice_glyphs --sweep loss.scale=!
    run ice_glyphs output=file!/x train.iterations=0 device=cpu
    leaderboard
    leaderboard --name nothing!
    leaderboard nowhere!
    leaderboard --sort !
    leaderboard --shape bad!.yaml
    leaderboard --shape table3 --others
    leaderboard -f csv
    leaderboard -f json
    leaderboard -f markdown
    leaderboard -f latex
    leaderboard -f html
    leaderboard -f nothing!
    leaderboard -o table!.md
    compare a! ice
    compare a! ice --json
    compare nothing! ice
    measure runs/a!
    report -o report! --no-tsne --gallery 1
    report nowhere!
    plot curves runs/a! -o curves!.svg
    plot sweep runs -o sweep!.svg --setting !
    plot tsne runs/a! -o map!.png --items 5
    plot curves runs/a! -o curves.!
    embed runs/a! photos -o e!.npz
    embed runs/a! nowhere! -o e.npz
    embed runs/a! bad! -o e.npz
    index runs/a! photos -o index!
    index runs/a! photos -o photos
    search index! photos/test/test!/i!.png --sheet sheet!.png
    search index! photos/test/test!/i!.png --json
    search index! nothing!
    search damaged! x.png
    export runs/a! -o x!.json
    export nothing!
    data list
    data verify image_folder --root photos
    data verify image_folder --root bad!
    data verify nothing!
    data download cub200 --url !
    data download cub200 --root file!/x
    nothing!
    run --nothing!
"""
COMMANDS = [line.strip() for line in COMMANDS.strip().split("\n")]


@pytest.fixture(scope="module")
def strange(made):
    """Return the folder with other things that commands read."""
    base = json.dumps(f"v{STEERING}")
    (made / f"x{STEERING}.yaml").write_text(
        f"extends: ice_folder\nname: x\ndataset: {{root: {base}}}\n"
    )
    (made / f"bad{STEERING}.yaml").write_text(f"{base}: {base}\nloss: {base}\nextends: {base}\n")
    (made / f"file{STEERING}").touch()
    for name in ("bad", "damaged"):
        (made / (name + STEERING)).mkdir()
    (made / f"damaged{STEERING}" / "meta.json").write_text(json.dumps({STEERING: STEERING}))
    (made / f"bad{STEERING}" / f"i{STEERING}.png").write_text(STEERING)
    return made


@pytest.fixture
def stranger():
    zoo.register("losses", "stranger")(Stranger)
    yield "stranger"
    del components._registered["losses", "stranger"]


@pytest.mark.slow
def test_no_command_lets_a_text_steer_the_terminal(strange, command, monkeypatch, stranger):
    monkeypatch.chdir(strange)
    monkeypatch.setenv("ZOO_CACHE", str(strange / f"cache{STEERING}"))
    bad = []
    small = "model.backbone.weights=null sampler.classes=3"
    names = {"QUOTED": json.dumps(stranger), "STRANGER": stranger, "!": STEERING}
    said = {}
    for line in COMMANDS:
        given = line.replace("WITHOUT", small).split()
        for name, meant in names.items():
            given = [one.replace(name, meant) for one in given]
        _, out, err = command(*given)
        said[line] = out + err
        for stream in (out, err):
            seen = UNSEEN.intersection(stream)
            if seen or "Traceback" in stream:
                bad.append((line, seen, stream[:300]))
    assert not bad
    shown = harmless(STEERING).partition("\\r")[0]  # blanks of an error are made one
    failed = [line for line in COMMANDS if "STRANGER" in line or "QUOTED" in line]
    for line in ["list", "leaderboard", *failed]:
        assert shown in said[line].replace("\n", "").replace(" ", ""), line
    assert f"said {shown}" in said["check STRANGER"]


def test_names_that_no_file_can_have(tmp_path):
    long = "x" * 5_000
    for use in (
        lambda: checks.run(long),
        lambda: leaderboard.load(long),
        lambda: RunFolder.find("ice", long),
        lambda: RunFolder.find(long, tmp_path),
    ):
        with pytest.raises(UserError):
            use()
