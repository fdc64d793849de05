"""The site: every page is in its navigation, builds, and says what works."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import commands
import numpy as np
import pytest
import replicas
import torch
import yaml
from places import ROOT

import zoo
from zoo.base import Survey
from zoo.cli import main
from zoo.config import loading
from zoo.data import survey
from zoo.registry import components

DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text("utf-8") for path in sorted(DOCS.glob("*.md"))}
PAGES["CONTRIBUTING.md"] = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "smooth-hard"
TUTORIAL = PAGES.pop("tutorial.md")  # its commands build on each other
WITH_TESTS_OF_THEIR_OWN = {"hooks.md", "compare.md", "measures.md", "report.md", "results.md"}
WITH_TESTS_OF_THEIR_OWN |= {"parts.md", "search.md", "tables.md", "trackers.md"}
# What sets up a machine; CI does these, or what comes to the same.
SET_UP = {
    "python3 -m venv .venv",
    ". .venv/bin/activate",
    "pip install -e .",
    "pip install -e '.[test]'",
    "pip install -e '.[dev]'",
    "pre-commit install",
    'pytest -n auto --dist worksteal -m "not slow"',
    "ruff check .",
    "ruff format --check .",
    "python tools/link_typing.py",
    "mypy",
    "pyright",
    "mkdocs build --strict",
}


def navigation():
    """Return the pages that mkdocs.yml names, in their order."""
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    return re.findall(r"[\w-]+\.md", json.dumps(found))


def test_every_page_is_in_the_navigation_and_the_other_way_round():
    of_the_root = ["contributing.md", "changelog.md"]  # see tools/site_pages.py
    named = navigation()
    assert sorted(named) == sorted([*(path.name for path in DOCS.rglob("*.md")), *of_the_root])


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nobody_for_anything(tmp_path):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "search" / "search_index.js").is_file()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(
            r'<link\b(?![^>]*rel="(?:canonical|prev|next)")[^>]*href="([^"]+)"', text
        )
        assert loaded
        assert not [one for one in loaded if "//" in one], page
    losses = (tmp_path / "losses.html").read_text("utf-8")
    for name in zoo.names("losses"):
        assert losses.count(f'id="{name}"') == 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("config", marks=commands.with_recent_pydantic),
        pytest.param("components", marks=pytest.mark.slow),
    ],
)
def test_a_page_is_made_from_the_code(name):
    tools = {"config": "make_config_docs.py", "components": "make_component_docs.py"}
    tool = [sys.executable, str(ROOT / "tools" / tools[name]), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_setting_is_on_the_page_of_settings():
    schema = loading.schema()
    for name in schema["properties"]:
        assert f"| `{name}` |" in PAGES["config.md"]
    for section in ("Images", "Model", "Train", "Evaluate", "Paper"):
        for name in schema["$defs"][section]["properties"]:
            assert f"| `{section.lower()}.{name}` |" in PAGES["config.md"]


def test_every_component_is_on_the_page_of_components():
    for kind in ("miners", "samplers", "backbones", "datasets", "spaces", "trackers"):
        own = [
            n for n in zoo.names(kind) if components.component(kind, n).distribution == "metric-zoo"
        ]
        for name in own:
            assert f"\n### {name}\n" in PAGES["components.md"]


# ---- commands

ZOO = sorted(
    {
        part
        for name, text in PAGES.items()
        if name not in WITH_TESTS_OF_THEIR_OWN
        for part in commands.single_commands(text)
        if part.startswith("zoo ")
    }
    - set(commands.single_commands((ROOT / "README.md").read_text("utf-8")))  # see test_readme.py
)


def test_whatever_else_is_told_sets_up_a_machine():
    texts = [text for name, text in PAGES.items() if name not in WITH_TESTS_OF_THEIR_OWN]
    said = {part for text in [*texts, TUTORIAL] for part in commands.single_commands(text)}
    assert len(ZOO) == 34
    assert {part for part in said if not part.startswith("zoo ")} <= SET_UP


@pytest.mark.slow
@pytest.mark.parametrize("line", ZOO)
def test_every_command_works(line, tmp_path, monkeypatch, capsys):
    arguments = line.split()[1:]
    if arguments[:2] == ["data", "download"]:  # what it does is tested elsewhere
        monkeypatch.setattr(survey, "download", lambda *_: Survey(None, "whole", {}, []))
    if "my_module:MyLoss" in arguments:
        (tmp_path / "my_module.py").write_text(
            (EXAMPLE / "smooth_hard.py").read_text("utf-8").replace("SmoothHardLoss", "MyLoss")
        )
        arguments += ["--only", "check_permutation"]
    wanted = 1 if "pml.NTXentLoss" in arguments else 0  # the fault that it is there to show
    assert commands.run_small(arguments, tmp_path, monkeypatch) == wanted, capsys.readouterr().err
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_front_page_picture_is_made_as_the_page_says(tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    commands.run_small(["run", "configs/ice_glyphs.yaml"], tmp_path, monkeypatch)
    (code,) = commands.blocks("python", PAGES["results.md"])
    exec(code, {})
    for line in commands.single_commands(PAGES["results.md"]):
        status = commands.run_small(line.split()[1:], tmp_path, monkeypatch)
        assert status == 0, capsys.readouterr().err
    assert (tmp_path / "retrieved.png").is_file()


@pytest.mark.slow
def test_the_python_of_the_quickstart(tmp_path, monkeypatch):
    commands.run_small(["run", "configs/ice_glyphs.yaml"], tmp_path, monkeypatch)
    (code,) = commands.blocks("python", PAGES["quickstart.md"])
    names = {"images": list(np.zeros((5, 32, 32), np.uint8))}
    exec(code, names)
    assert names["embeddings"].shape == (5, 128)
    assert names["cosines"] == pytest.approx(1)


NEEDS = {"to_pandas": "pandas", "zoo.index": "faiss", "zoo.export": "onnxscript"}


@pytest.mark.slow
def test_the_python_of_the_page_on_python(tmp_path, monkeypatch):
    """All of it, in its order; without pandas, faiss or onnxscript, what does not need them."""
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    commands.run_small(["run", "configs/ice_glyphs.yaml"], tmp_path, monkeypatch)
    commands.photographs(tmp_path)
    for i, name in enumerate(["a.jpg", "b.jpg"]):
        replicas.save_photo(tmp_path / name, i, size=(60, 50))
    names = {"__name__": "a_notebook", "labels": torch.arange(60) // 5}
    names["embeddings"] = torch.randn(60, 8, requires_grad=True)
    codes = commands.blocks("python", PAGES["python.md"])
    assert len(codes) == 11
    for code in codes:
        needed = [module for text, module in NEEDS.items() if text in code]
        if all(map(importlib.util.find_spec, needed)):
            exec(code, names)
    assert names["value"].isfinite()
    assert names["ranks"].shape == (60,)
    assert not names["report"].ok
    assert names["latex"].startswith("% In the preamble")
    assert names["embeddings"].shape == (2, 128)
    if "numbers" in names:
        assert len(names["numbers"]) == 8  # two experiments, four K
    if "exported" in names:
        assert names["exported"].difference.largest < 1e-5


def test_the_sweeps_that_are_shown_are_understood(tmp_path):
    sweeps = [t for t in commands.blocks("text", PAGES["runs.md"]) if t.startswith("sweep:")]
    counts = []
    for text in sweeps:
        (tmp_path / "x.yaml").write_text(
            f"extends: ice_glyphs\npaper: {{table: T, dataset: d}}\n{text}"
            if "paper." in text
            else f"extends: ice_glyphs\n{text}"
        )
        counts.append(len(loading.load_all(tmp_path / "x.yaml")))
    assert counts == [12, 2]


def test_the_losses_that_are_shown_within_losses_are_understood(tmp_path):
    shown = [t for t in commands.blocks("yaml", PAGES["faq.md"]) if t.startswith("loss:")]
    assert len(shown) == 3
    for text in shown:
        (tmp_path / "x.yaml").write_text(f"extends: ice_glyphs\n{text}")
        assert loading.load(tmp_path / "x.yaml").loss.name.startswith("pml.")


# ---- the tutorial


def code_of_tutorial():
    """Return the class as it is at first, and as it is in the end."""
    first, mended = commands.blocks("python", TUTORIAL)
    lines = first.splitlines(keepends=True)
    for new in mended.splitlines(keepends=True):
        left = new.split("=")[0]
        (place,) = (i for i, line in enumerate(lines) if line.startswith(left + "="))
        lines[place] = new
    return first, "".join(lines)


def test_the_files_of_the_tutorial_are_those_of_the_example():
    assert code_of_tutorial()[1] == (EXAMPLE / "smooth_hard.py").read_text("utf-8")
    (toml,) = commands.blocks("toml", TUTORIAL)
    command, _, shipped = (EXAMPLE / "pyproject.toml").read_text("utf-8").partition("\n")
    assert command.startswith("# pip install")
    assert toml == shipped
    assert (EXAMPLE / "smooth_hard_glyphs.yaml").read_text("utf-8") in commands.blocks(
        "yaml", TUTORIAL
    )


def check(arguments, tmp_path, monkeypatch):
    """Check the class in the folder, by the checks that its first form fails."""
    sys.modules.pop("smooth_hard", None)
    only = ["--only", "check_no_positives", "--only", "check_half_precision"]
    return commands.run_small([*arguments, *only], tmp_path, monkeypatch)


@pytest.fixture
def named(monkeypatch):
    """Return a function that gives the class its name, as the installed package does."""
    monkeypatch.setattr(components, "_registered", {})
    yield lambda code: zoo.register("losses", "smooth_hard")(defined(code))
    sys.modules.pop("smooth_hard", None)


def defined(code):
    names = {"__name__": "smooth_hard"}
    exec(code, names)
    return names["SmoothHardLoss"]


@pytest.mark.slow
def test_every_command_of_the_tutorial_works_in_its_order(tmp_path, monkeypatch, capsys, named):
    first, mended = code_of_tutorial()
    parts = commands.single_commands(TUTORIAL)
    todo = [part.split()[1:] for part in parts if part.startswith("zoo ")]
    (tmp_path / "smooth_hard.py").write_text(first)
    assert check(todo.pop(0), tmp_path, monkeypatch) == 1
    assert "the gradient of 1 of 1 images is NaN" in capsys.readouterr().out
    (tmp_path / "smooth_hard.py").write_text(mended)
    assert check(todo.pop(0), tmp_path, monkeypatch) == 0
    named(mended)
    (yaml_file,) = commands.blocks("yaml", TUTORIAL)
    (tmp_path / "smooth_hard_glyphs.yaml").write_text(yaml_file)
    for arguments in todo:
        if arguments[0] not in main.app.commands:
            continue
        arguments = ["0,1" if argument == "0,1,2" else argument for argument in arguments]
        assert commands.run_small(arguments, tmp_path, monkeypatch) == 0, capsys.readouterr().err
        assert capsys.readouterr().out or "-o" in arguments


def test_the_tutorial_says_what_comes_of_the_checks():
    from zoo import checks

    counts = re.findall(r"(\d+) passed(?:, (\d+) failed)?, (\d+) not applicable", TUTORIAL)
    assert len(counts) == 2
    assert all(sum(map(int, filter(None, c))) == len(checks.CHECKS) for c in counts)
    assert f"of {len(checks.CHECKS)} checks" in TUTORIAL


def test_the_runs_of_the_tutorial_have_the_settings_that_it_says(named, monkeypatch, tmp_path):
    named(code_of_tutorial()[1])
    path = tmp_path / "smooth_hard_glyphs.yaml"
    path.write_text((EXAMPLE / "smooth_hard_glyphs.yaml").read_text("utf-8"))
    wanted = {loading.load(path, [f"seed={seed}"]).run_name() for seed in range(3)}
    assert wanted == {p.name for p in (ROOT / "results" / "runs" / "tutorial").iterdir()}
