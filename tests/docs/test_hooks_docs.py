"""The page of hooks: its classes are those of the example, which are checked and trained."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from commands import blocks

import zoo
from zoo import runner
from zoo.checks import Subject
from zoo.config import load, load_all
from zoo.progress import Reporter
from zoo.registry import components
from zoo.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/hooks"
PAGE = (ROOT / "docs/hooks.md").read_text("utf-8")
LOSSES = ["steady", "spread", "neighbourhood", "different", "critic", "hellinger"]
SMALL = ["model.backbone.width=4", "model.embedding_size=16", "device=cpu"]
TRAIN = "train={iterations: 4, checkpoint_every: 2, log_every: 1}"


@pytest.fixture(scope="module")
def hooked():
    sys.path.insert(0, str(EXAMPLE))
    yield __import__("hooked")
    sys.path.remove(str(EXAMPLE))


@pytest.fixture(autouse=True)
def installed(hooked, monkeypatch):
    """Register what the entry points of the example name."""
    monkeypatch.setattr(components, "_registered", {})
    text = (EXAMPLE / "pyproject.toml").read_text("utf-8")  # Python 3.10 has no tomllib
    group, found = "", []
    for line in text.splitlines():
        if head := re.fullmatch(r'\[project\.entry-points\."zoo\.(\w+)"\]', line):
            group = head[1]
        elif point := re.fullmatch(r'(\w+) = "hooked:(\w+)"', line):
            zoo.register(group, point[1])(getattr(hooked, point[2]))
            found.append((group, point[1]))
    assert found == [*(("losses", name) for name in LOSSES), ("spaces", "hellinger")]


def settings(line):
    """Return the settings of the command of the page that trains with a loss, made small."""
    words = re.findall(r"'[^']*'|\S+", line)[3:]
    given = [word.strip("'") for word in words]
    smaller = {"model.slices=[32, 32, 64]": "model.slices=[4, 4, 8]"}
    return [smaller.get(word, word.replace("classes: 32", "classes: 8")) for word in given]


COMMANDS = {
    name: f"zoo run ice_glyphs name={name}_glyphs loss={name}" for name in ("spread", "critic")
} | {
    name: line
    for text in blocks("sh", PAGE)
    for line in text.splitlines()
    for name in re.findall(r"^zoo run ice_glyphs name=\w+ loss=(\w+)", line)
}


def test_the_page_shows_the_code_of_the_example():
    source = (EXAMPLE / "hooked.py").read_text("utf-8")
    shown = blocks("python", PAGE)
    assert len(shown) == 7
    assert all(code in source for code in shown)


def test_the_page_names_every_hook():
    for name in (
        "image_ids",
        "num_images",
        "begin_epoch",
        "level_sizes",
        "parameter_groups",
        "space",
    ):
        assert f"`{name}" in PAGE
        assert name in zoo.base.LossHooks.__doc__ or hasattr(zoo.base.LossHooks, name)


def test_the_schedules_of_the_page_are_valid(tmp_path):
    found = blocks("yaml", PAGE)
    assert len(found) == 2
    for text in found:
        (tmp_path / "x.yaml").write_text("extends: cce_glyphs\n" + text)
        load(tmp_path / "x.yaml")
    (tmp_path / "swept.yaml").write_text("extends: cce_glyphs\n" + found[0])
    swept = load_all(tmp_path / "swept.yaml", [], ["loss.scale.to=2,4,8"])
    assert [v.config.loss.arguments["scale"]["to"] for v in swept] == [2, 4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_each_passes_the_checks(name):
    report = zoo.checks.run(Subject(name))
    assert report.ok, str(report.failures)


@pytest.mark.parametrize("name", LOSSES)
def test_each_trains_and_learns_something(name, few_glyphs, tmp_path, hooked):
    assert COMMANDS.keys() == set(LOSSES)
    more = [*SMALL, TRAIN, f"output={tmp_path}", *settings(COMMANDS[name])]
    if not any(word.startswith("sampler") for word in more):
        more.append("sampler.classes=8")
    result = runner.run(load("ice_glyphs", more), reporter=Reporter(quiet=True))
    folder = RunFolder(tmp_path / result["run"])
    assert len(folder.metrics()) == 4
    state = folder.load_checkpoint()["loss"]
    assert all(value.isfinite().all() for value in state.values())
    if name == "steady":
        assert state["last"].any()
    if name == "spread":
        assert len(state["spread"].unique()) > 1
    if name == "critic":
        torch.manual_seed(0)
        assert not torch.equal(state["critic.0.weight"], hooked.CriticLoss(16).critic[0].weight)
