"""The pages of parts and trackers: the code is that of the example, which is checked and used."""

from __future__ import annotations

import json
import re
import shlex
import sys

import commands
import pytest
import replicas
from places import ROOT

import zoo
from zoo.config import load
from zoo.registry import components
from zoo.runs.folder import RunFolder

EXAMPLE = ROOT / "examples/parts"
PAGE = (ROOT / "docs/parts.md").read_text("utf-8")
TRACKERS = (ROOT / "docs/trackers.md").read_text("utf-8")
LINES = [*commands.command_lines(PAGE), *commands.command_lines(TRACKERS)]
ZOO = [line for line in LINES if line.startswith("zoo ")]


def points():
    """Return (kind, name, class) of each entry point of the example."""
    found, group = [], ""
    for line in (EXAMPLE / "pyproject.toml").read_text("utf-8").splitlines():
        if head := re.fullmatch(r'\[project\.entry-points\."zoo\.(\w+)"\]', line):
            group = head[1]
        elif point := re.fullmatch(r'(\w+) = "parts:(\w+)"', line):
            found.append((group, *point.groups()))
    return found


@pytest.fixture
def installed(monkeypatch):
    """Register what the entry points of the example name."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(components, "_registered", {})
    parts = __import__("parts")
    for kind, name, cls in points():
        zoo.register(kind, name)(getattr(parts, cls))
    yield
    sys.modules.pop("parts")


def test_the_page_has_a_section_for_each_kind_and_shows_all_of_the_code():
    source = (EXAMPLE / "parts.py").read_text("utf-8")
    shown = commands.blocks("python", PAGE)
    assert all(code.strip() in source for code in shown)
    assert re.findall(r"^class (\w+)", "\n".join(shown), re.M) == [cls for _, _, cls in points()]
    without = {"losses", "spaces"}  # which have pages of their own
    assert {kind for kind, *_ in points()} == set(zoo.registry.KINDS) - without
    for kind, name, _ in points():
        assert f"`zoo.{kind}`" in PAGE
        assert f"zoo check {kind} {name}" in PAGE


def test_the_contracts_are_where_the_page_says():
    for name in re.findall(r"`([A-Z]\w+)`", PAGE.partition("| part |")[2].partition("\n\n")[0]):
        assert getattr(zoo.base, name).__doc__


@pytest.mark.parametrize("line", ZOO)
def test_every_command_works(line, installed, tmp_path, monkeypatch, capsys):
    (tmp_path / "photos").mkdir()
    for i in range(24):
        path = tmp_path / "photos" / f"{'abcdef'[i // 4]}_{i % 4}.jpg"
        replicas.save_photo(path, i, size=(60, 50))
    arguments = shlex.split(line)[1:]
    small = {"classes: 16, per_class: 4": "classes: 2, per_class: 3"}
    for long, short in small.items():
        arguments = [argument.replace(long, short) for argument in arguments]
    if "csv, tensorboard" in line and not _is_there("tensorboard"):
        pytest.skip("tensorboard is not installed")
    if arguments[0] != "run":
        monkeypatch.chdir(tmp_path)
        assert commands.run(monkeypatch, *arguments) == 0, capsys.readouterr().err
        return
    given = {argument.split("=")[0].split(".")[0] for argument in arguments[1:]}
    tiny = {
        "dataset": f"dataset={{name: by_file_name, root: {tmp_path / 'photos'}}}",
        "images": "images={resize: 40, crop: 32, random_crop: translate}",
        "sampler": "sampler={name: m_per_class, classes: 3, per_class: 2}",
        "model": "model={backbone: {name: convnet, width: 2}, embedding_size: 4}",
        "train": "train={iterations: 2}",
        "device": "device=cpu",
    }
    monkeypatch.chdir(tmp_path)
    arguments += [setting for key, setting in tiny.items() if key not in given]
    assert commands.run(monkeypatch, *arguments) == 0, capsys.readouterr().err
    (run,) = (tmp_path / "runs").iterdir()
    assert RunFolder(run).result()["recall"]
    if "best_so_far" in line:
        best = json.loads((run / "best.json").read_text())
        assert best["recall_at_1"][0] == RunFolder(run).result()["recall"]["1"]


def _is_there(package):
    import importlib.util

    return importlib.util.find_spec(package) is not None


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "said"),
    [
        ("samplers", "rounds", {"classes": 9, "per_class": 2}, "sampler.classes is 9; it must be"),
        ("samplers", "rounds", {"classes": 1, "per_class": 0}, "sampler.per_class is 0; it must"),
        ("datasets", "by_file_name", {"root": "nowhere"}, "nowhere: there is no such folder"),
        ("datasets", "by_file_name", {"root": "."}, "0 classes; needs 4 or more"),
    ],
)
def test_they_refuse_what_they_cannot_use(kind, name, arguments, said, installed, tmp_path):
    given = {"labels": [0, 0, 1, 1], "seed": 0, "split": "train"}
    if arguments.get("root") == ".":
        arguments = {"root": str(tmp_path)}
    with pytest.raises(zoo.UserError, match=said):
        components.assemble(kind, name, arguments, given)


def test_the_config_of_the_page_of_trackers_is_valid(tmp_path):
    (text,) = commands.blocks("yaml", TRACKERS)
    (tmp_path / "x.yaml").write_text("extends: ice_glyphs\n" + text)
    assert [one.name for one in load(tmp_path / "x.yaml").trackers] == ["tensorboard", "csv"]


def test_the_table_of_trackers_has_all_of_them():
    table = re.findall(r"^\| `(\w+)` \| (\S+) \|", TRACKERS, re.M)
    assert {name for name, _ in table} == set(zoo.names("trackers"))
    extra = re.search(r"^trackers = (.*)$", (ROOT / "pyproject.toml").read_text("utf-8"), re.M)[1]
    for _, package in table:
        assert package == "–" or package.strip("`") in extra
