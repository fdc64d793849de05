"""The command: what it prints, and with which status it ends."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml
from PIL import Image
from places import TESTS

import zoo
from zoo import registry
from zoo.errors import out_of_memory
from zoo.plans import process
from zoo.registry.source import filled, unmarked
from zoo.support.files import cannot_write

TABLE = yaml.safe_load((TESTS / "config" / "malformed_configs.yaml").read_text("utf-8"))


@pytest.fixture
def command(command, monkeypatch, tmp_path):
    """Return a function that runs the command in an empty folder: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return command


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["id"])
def test_a_malformed_config_ends_with_2_and_a_line_for_each_problem(command, case):
    files = {"ok.yaml": TABLE["ok.yaml"], "x.yaml": case["text"], **case.get("files", {})}
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")
    status, out, err = command("run", "x.yaml", *case.get("overrides", []))
    assert status == 2
    assert out == ""
    lines = err.removeprefix("error: ").splitlines()
    assert len(lines) == len(case["expected"])
    for line, beginning in zip(lines, case["expected"], strict=True):
        assert line.startswith(beginning)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_no_traceback_from_the_real_process(tmp_path):
    (tmp_path / "x.yaml").write_text(
        "extends: ice_glyphs\nloss: {scael: 3}\ntrain: {iteratons: 3}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "zoo", "run", "x.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: x.yaml:2: loss.scael: unknown argument of ice; did you mean scale?",
        "x.yaml:3: train.iteratons: unknown key; did you mean iterations?",
    ]


def test_list_names_everything(command):
    status, out, _ = command("list")
    assert status == 0
    for kind in registry.KINDS:
        assert kind in out
        for name in zoo.names(kind):
            assert name in out
    assert "pml.NTXentLoss" not in out
    assert "pml.NTXentLoss" in command("list", "losses", "--all")[1]


@pytest.mark.slow
def test_names_and_words_are_whole_in_a_narrow_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for kind in registry.KINDS:
        _, out, _ = command("list", kind, "--all")
        lines = out.splitlines()
        assert max(map(len, lines)) <= 80
        for name in [*zoo.names(kind), *registry.pml_names(kind)]:
            found = registry.component(kind, name)
            assert any(line.split()[:1] == [name] for line in lines), name
            if kind != "losses" or name.startswith("pml."):
                words = f"{unmarked(found.summary)} ({found.paper})".split()
                whole = [word for word in words if word in out.split()]
                assert [w for w in words if len(w) <= 39 and w not in (*whole, "()")] == [], name


@pytest.mark.parametrize("width", [20, 30, 40])
@pytest.mark.parametrize("kind", ["datasets", "backbones", "samplers"])
def test_a_description_loses_no_word_in_a_narrow_terminal(command, monkeypatch, kind, width):
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = command("list", kind)
    assert status == 0
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    if width == 20:  # below the name, so that lines are not mixed with other columns
        shown = "".join(out.split())
        for name in registry.names(kind):
            found = registry.component(kind, name)
            assert name + "".join(unmarked(found.summary).split()) in shown


COLUMNS_OF_LOSSES = ["name", "paper", "checks", "classes", "sampler", "cost"]


@pytest.mark.parametrize(
    ("width", "columns", "note"),
    [
        (60, 2, "checks, classes, sampler and cost need a wider terminal"),
        (80, 3, "classes, sampler and cost need a wider terminal"),
        (100, 4, "sampler and cost need a wider terminal"),
        (200, 6, ""),
    ],
)
def test_a_loss_is_a_line_with_the_columns_that_fit(command, monkeypatch, width, columns, note):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = command("list", "losses")[1].splitlines()
    names = zoo.names("losses")
    assert lines[1].split() == COLUMNS_OF_LOSSES[:columns]
    assert max(map(len, lines)) <= width
    table = [line for line in lines if line.split()[:1] and line.split()[0] in names]
    assert sorted(line.split()[0] for line in table) == names
    assert all(re.search(r" \d{4}( |$)", line) for line in table)
    assert [line for line in lines if "wider" in line] == ([note] if note else [])
    assert any("cost: time;" in line for line in lines) == (width == 200)


def test_nothing_shows_marks_of_restructured_text(command):
    _, out, _ = command("list")
    assert "`" not in out
    for kind, name in [
        ("samplers", "m_per_class"),
        ("losses", "ice"),
        ("datasets", "image_folder"),
    ]:
        _, out, _ = command("show", kind, name)
        assert not re.search(r"`|::$|\*\w", out, re.M)


@pytest.mark.parametrize("width", [pytest.param(60, marks=pytest.mark.slow), 80])
def test_show_fills_the_width_and_says_nothing_twice(command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for name in zoo.names("losses"):
        found = registry.describe("losses", name)
        _, out, _ = command("show", "losses", name)
        assert " ".join(out.split()).count(unmarked(found.summary)) == 1
        own = registry.documentation(registry.load("losses", name)).splitlines()
        for line in out.split("\n\n", 1)[1].splitlines():
            formula = line.startswith("    ") and line in own
            assert len(line) <= width or formula, (name, line)


def test_a_docstring_is_filled_like_its_paragraphs():
    text = """\
The **value** is a *mean* of ``n`` terms, as :class:`~zoo.losses.ice.ICELoss` explains in
its own words::

    y  =  a formula that is longer than the width of the line ``and`` has **marks**

    z  =  1

Then a short line.
x : int
    of somebody's own layout
* an item that goes on and on until it has reached the end of the line, where it
  continues
    scale: an argument that goes on and on until it has reached the end of the line,
        where it continues
    args, **kwargs: others"""
    assert (
        filled(text, 44)
        == """\
The value is a mean of n terms, as ICELoss
explains in its own words:

    y  =  a formula that is longer than the width of the line ``and`` has **marks**

    z  =  1

Then a short line.
x : int
    of somebody's own layout
* an item that goes on and on until it has
  reached the end of the line, where it
  continues
    scale: an argument that goes on and on
        until it has reached the end of the
        line, where it continues
    args, **kwargs: others"""
    )


def test_list_refuses_an_unknown_kind(command):
    status, _, err = command("list", "loses")
    assert status == 2
    assert err == "error: there is no kind of component named 'loses'; did you mean losses?\n"


@pytest.mark.parametrize(
    ("kind", "name", "parts"),
    [
        ("losses", "ice", ["Wang et al. 2019", "scale", "64.0", "float", "arXiv:1911.09976"]),
        ("losses", "pml.ArcFaceLoss", ["margin", "28.6", "num_classes", "given by the run"]),
        ("backbones", "torchvision.*", ["torchvision.resnet50", "torchvision.mobilenet_v2"]),
        ("backbones", "torchvision.resnet18", ["weights"]),
        ("datasets", "image_folder", ["test_share", "0.5", "split", "given by the run"]),
        ("samplers", "m_per_class", ["per_class", "required", "given by the run", "fewer"]),
        ("losses", "pml.MarginLoss", ["learn_beta", "This class has no documentation."]),
    ],
)
def test_show(command, kind, name, parts):
    status, out, _ = command("show", kind, name)
    assert status == 0
    for part in parts:
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["losses", "icee"], "there is no loss named 'icee'; did you mean ice?"),
        (["losses", "semihard"], "but a miner; did you mean triplet_semihard?"),
        (["ice"], "say which kind: zoo show losses ice"),
        (["angular"], "say which kind: zoo show losses angular or zoo show miners angular"),
        (["losses"], "add a name; `zoo list losses` shows them"),
        (["icee"], "there is nothing named 'icee'; did you mean ice?"),
        (["nope"], "there is nothing named 'nope'; `zoo list` shows what there is"),
        ([""], "there is nothing named ''; `zoo list` shows what there is"),
    ],
)
def test_show_what_there_is_not(command, arguments, message):
    status, _, err = command("show", *arguments)
    assert status == 2
    assert message in err


def test_warnings_are_a_line_each_and_said_once(command, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    photographs(tmp_path / "data")
    (tmp_path / "data/train/notes.txt").write_text("")
    tiny = ["model.backbone={name: convnet, width: 2}", "model.embedding_size=4", "device=cpu"]
    tiny += ["images.resize=16", "images.crop=16", "train.iterations=1", "sampler.classes=2"]
    status, _, err = command("run", "ice_folder", f"dataset.root={tmp_path / 'data'}", *tiny)
    assert status == 0, err
    told = [line for line in err.splitlines() if line.startswith("warning")]
    assert told == [
        f"warning: {str(tmp_path / 'data')!r}: 1 stray file or folder ignored: 'train/notes.txt'",
        "warning: 2 of 2 training classes have fewer than sampler.per_class=5 images, which are "
        "repeated within a batch",
    ]
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    _, _, err = command("run", "ice_folder", f"dataset.root={tmp_path / 'data'}", *tiny, "seed=1")
    assert re.search(r"^warning: 2 of 2 .* batch \(.*\.py:\d+: UserWarning\)$", err, re.M)


def photographs(root):
    for split, name in [("train", "a"), ("train", "b"), ("test", "c"), ("test", "d")]:
        folder = root / split / name
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (16, 16), (60 * i, ord(name), 7)).save(folder / f"{i}.png")


def test_config_prints_what_loads_again(command, tmp_path):
    status, out, _ = command("config", "ice_glyphs", "loss.scale=8")
    assert status == 0
    (tmp_path / "again.yaml").write_text(out)
    assert command("config", "again.yaml")[1] == out
    assert yaml.safe_load(out)["loss"]["scale"] == 8


def test_config_without_a_name_lists_the_shipped_ones(command):
    status, out, _ = command("config")
    assert status == 0
    assert {"ice_glyphs", "pretrained_glyphs", "ice_folder"} <= set(out.split())


def test_leaderboard_of_nothing(command, tmp_path):
    status, _, err = command("leaderboard")
    assert status == 2
    assert err.startswith("error: runs: there is no such folder; ")
    assert "zoo run ice_glyphs" in err
    (tmp_path / "runs").mkdir()
    status, _, err = command("leaderboard")
    assert status == 2
    assert err.startswith("error: runs: no finished run in it; ")


@pytest.mark.slow
def test_run_and_leaderboard(command, tmp_path):
    settings = ["train.iterations=1", "model.backbone.width=2", "device=cpu"]
    status, out, err = command("run", "ice_glyphs", *settings)
    assert status == 0, err
    assert "R@1" in out
    assert "test     glyphs: 1,161 classes" in err
    result = json.loads(next((tmp_path / "runs").glob("*/result.json")).read_text())
    assert f"{100 * result['recall']['1']:.2f}" in out
    for part in HEADER:
        assert part in err
    status, again, err = command("run", "ice_glyphs", *settings)
    assert (status, again) == (0, out)
    said = "is finished; its result (--restart deletes it and trains again):\n"
    assert err == f"runs/{result['run']} {said}"
    status, out, _ = command("leaderboard", "--format", "markdown")
    assert status == 0
    title = "Recall@K in percent, glyphs: 1,161 classes, 13,587 images; convnet, 128-d"
    assert out.startswith(f"### {title}\n\n| config | loss |")
    status, quiet, err = command("run", "ice_glyphs", *settings, "--restart", "--quiet")
    assert err == ""
    assert "R@1" in quiet
    other = command("run", "ice_glyphs", *settings, "loss.scale=16")[1]
    assert "loss.scale=64" in other
    assert "loss.scale=16" in other
    quiet = command("run", "ice_glyphs", *settings, "loss.scale=16", "-q")[1]
    assert quiet.count("ice_glyphs") == 1


HEADER = (
    "changed  train.iterations=1 model.backbone.width=2 device=cpu\n",
    "test     glyphs: 1,161 classes, 13,587 images\n",
    "loss     ice(scale=64, reweight=true, anchor_gradient=true)\n",
    "miner    none\n",
    "sampler  m_per_class(classes=32, per_class=4)\n",
    "training 1 iterations, adam(lr=0.001), cosine\n",
    "seed     0\n",
)


@pytest.mark.slow
def test_a_finished_run_is_shown_without_torch(command, tmp_path):
    """Whose import takes seconds."""
    settings = ["train.iterations=0", "model.backbone.width=2", "device=cpu"]
    assert command("run", "ice_glyphs", *settings)[0] == 0
    code = (
        "import sys; from zoo.cli import main as cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "ice_glyphs", *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is finished; its result" in done.stderr
    assert done.stderr.endswith("False\n")
    assert "R@1" in done.stdout


def test_ctrl_c_before_training_says_how_to_go_on_too(command, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo.config.loading, "load_all", stopped)
    status, _, err = command("run", "ice_glyphs", "loss.scale=7")
    assert (status, err) == (1, "stopped; to resume: zoo run ice_glyphs loss.scale=7\n")


@pytest.mark.slow
def test_a_damaged_result_is_a_warning(command, tmp_path):
    command("run", "ice_glyphs", "train.iterations=0", "model.backbone.width=2", "device=cpu")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "result.json").write_text("[1]")
    status, out, err = command("leaderboard")
    assert status == 0
    assert "R@1" in out
    assert err.startswith("warning: runs/bad/result.json: not the result of a run; delete it")
    assert len(err.splitlines()) == 1


def test_a_missing_folder_of_photographs_is_said(command):
    status, _, err = command("run", "ice_folder")
    assert status == 2
    assert "dataset.root" in err
    status, _, err = command("run", "ice_folder", "dataset.root=nowhere", "model.backbone.weights=")
    assert status == 2
    assert "does not exist" in err
    assert "Traceback" not in err


def test_version_and_help(command):
    assert command("--version")[1] == f"metric-zoo {zoo.__version__}\n"
    out = command("--help")[1]
    for name in ("run", "list", "show", "config", "leaderboard"):
        assert name in out
    out = " ".join(command("run", "--help")[1].split())
    assert "loss.scale=32" in out
    assert "Exit status: 0 done, 1 a run was stopped or failed, 2 the input was wrong." in out


def test_a_wrong_option_ends_with_2(command):
    status, _, err = command("run", "ice_glyphs", "--nonsense")
    assert status == 2
    assert "No such option" in err


# ---- streams


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("zoo list losses >&-", 0, ""),
        ("zoo list losses > /dev/full", 1, "the output cannot be written"),
        ("zoo config ice_glyphs > /dev/full", 1, "the output cannot be written"),
        ("PYTHONIOENCODING=ascii zoo list losses > /dev/null", 0, ""),
        ("zoo list losses | head -n 1 > /dev/null", 0, ""),
    ],
)
def test_streams_that_take_nothing_or_not_all(line, status, said):
    zoo_command = f"{sys.executable} -m zoo "
    done = subprocess.run(
        ["sh", "-c", line.replace("zoo ", zoo_command)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert said in done.stderr


def test_an_argument_of_a_check_is_given_once(command):
    status, _, err = command("check", "ice", "scale=64", "scale=2")
    assert (status, err) == (2, "error: scale=2: scale is given twice\n")


def test_a_loss_named_twice_is_checked_once(command):
    status, out, _ = command("check", "ice", "ice", "--only", "check_permutation")
    assert status == 0
    assert "2 losses" not in out


@pytest.mark.parametrize("setting", ["ZOO_DATA", "ZOO_CACHE"])
def test_a_folder_of_nobody(command, monkeypatch, setting):
    monkeypatch.delenv("ZOO_DATA", raising=False)
    monkeypatch.setenv(setting, "~nobody-of-that-name/x")
    status, _, err = command("data", "list")
    assert (status, err.splitlines()) == (
        2,
        [f"error: {setting}='~nobody-of-that-name/x': Could not determine home directory."],
    )


def test_what_the_machine_refuses_is_told_in_a_line(command, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", "/tmp/" + "a" * 300)
    status, out, _ = command("data", "list")  # one of them hides no other
    assert (status, out.count("File name too long")) == (0, 3)
    status, _, err = command("data", "download", "cub200")
    assert status == 2
    assert err.startswith("error: '/tmp/aaa")
    assert err.endswith("File name too long\n")
    assert err.count("\n") == 1


WIDTHS = [("60", 60), ("060", 60), ("", 160), ("0", 160), ("x", 160), ("-5", 160), ("3", 160)]
WIDTHS += [("9" * n, 0) for n in (5, 11, 5000)]  # as wide as the widest line


@pytest.mark.parametrize(("columns", "widest"), WIDTHS)
def test_piped_output_is_as_wide_as_columns_says(columns, widest, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = command("list", "backbones")
    assert (status, err) == (0, "")
    found = max(map(len, out.splitlines()))
    assert found == widest if widest else 160 < found < 1000


def torch_is_full():
    import torch

    torch.empty(1 << 50)


FULL = [torch_is_full, lambda: np.empty(1 << 50), lambda: bytearray(1 << 60)]


@pytest.mark.parametrize("fill", FULL)
def test_a_full_memory_is_told_in_a_line(fill, command, monkeypatch):
    monkeypatch.setattr("zoo.registry.names", lambda _: fill())
    status, _, err = command("list")
    assert status == 1
    assert err.startswith("error: the memory is full: use smaller batches")
    assert err.count("\n") == 1
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        fill()
    assert process._expected(caught.value) in err


def test_which_errors_mean_a_full_memory():
    import torch

    assert "GPU" in out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    assert "GPU" in out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert "GPU" in out_of_memory(RuntimeError("CUDA error: out of memory"))
    for error in (OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("std::bad_alloc")):
        assert out_of_memory(error).startswith("the memory is full")
    for error in (ValueError("not enough memory"), OSError(errno.EIO, "x"), RuntimeError("x")):
        assert out_of_memory(error) is None


@pytest.mark.parametrize("name", [":x", "x:", ":", "..a:b", "a.:b", "a:b."])
def test_a_class_to_check_has_a_module_and_a_name(command, name):
    status, out, err = command("check", name)
    assert (status, out) == (2, "")
    assert err == f"error: {name}: must be module:Class, such as my_package.my_module:MyLoss\n"


STATUS = {
    1: ["ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EIO"],
    2: ["ENOTDIR", "ENAMETOOLONG", "ENOENT"],
}


@pytest.mark.parametrize("status", STATUS)
def test_the_status_tells_the_machines_faults_from_the_users(status, command, monkeypatch):
    for number in (getattr(errno, name) for name in STATUS[status]):
        plain = OSError(number, os.strerror(number), "file")
        for error in (plain, cannot_write(Path("x"), plain)):
            monkeypatch.setattr("zoo.registry.names", mock.Mock(side_effect=error))
            found, _, err = command("list")
            assert (found, err.count("\n")) == (status, 1)


def test_a_name_of_any_length_is_told_in_a_line(command):
    name = "x" * 100_000
    Path("x.png").touch()
    commands = ["search ! x.png", "search x !", "config !", "measure !", "leaderboard !"]
    commands += ["embed ! x -o e.npz", "report !", "data verify image_folder --root !"]
    commands += ["config ice_glyphs dataset=!", "leaderboard -o !.md", "search x ! --sheet !.png"]
    for arguments in (line.replace("!", name).split() for line in commands):
        status, out, err = command(*arguments)
        assert (status, out) == (2, ""), arguments
        assert len(err) < 1000, arguments


@pytest.mark.parametrize("module", ["zoo", "zoo.__main__"])
@pytest.mark.slow
def test_the_package_is_the_command(module, tmp_path):
    def run(*arguments):
        line = [sys.executable, "-m", module, *arguments]
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)

    told = run("--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "Usage: zoo [OPTIONS]" in told.stdout
    wrong = run("config", "no_such")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: there is no config 'no_such'")


def stopped_at_the_import_of(module, name, *arguments):
    """Run the command, which gets a signal when it imports a module: (status, stdout, stderr)."""
    code = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.{name})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from zoo.__main__ import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["rich_click", "zoo.cli.search", "zoo.progress"])
def test_a_stop_while_the_command_is_imported_takes_one_line(module, name):
    assert stopped_at_the_import_of(module, name, "list") == (1, "", "stopped\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "module", "said"),
    [
        (["run", "ice_glyphs"], "zoo.config.loading", "stopped; to resume: zoo run ice_glyphs\n"),
        (["run", "a", "b"], "zoo.plans", "stopped; to resume: zoo run a b\n"),
        (["data", "download", "sop"], "zoo.data.survey", "stopped\n"),
        (["embed", "x", "y", "-o", "z.npz"], "zoo.trained", "stopped\n"),
        (["check", "ice"], "zoo.checks", "stopped\n"),
    ],
)
def test_sigterm_before_the_work_ends_as_ctrl_c_does(arguments, module, said):
    asked = [stopped_at_the_import_of(module, name, *arguments) for name in ("SIGINT", "SIGTERM")]
    assert asked[0] == asked[1]
    assert asked[1][2] == said
    assert asked[1][0] == 1
