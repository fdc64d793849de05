"""The page of hooks: its classes are those of the example, which are checked and trained."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import ClassVar

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
LOSSES = ["steady", "spread", "neighbourhood", "different", "critic", "rival", "hellinger"]
SAMPLERS = ["far_positives", "far_positives_in_groups"]
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
    named = [("losses", name) for name in LOSSES] + [("samplers", name) for name in SAMPLERS]
    assert found == [*named, ("spaces", "hellinger")]


def settings(line):
    """Return the settings of a command of the page that trains, made small."""
    words = re.findall(r"'[^']*'|\S+", line)[3:]
    given = [word.strip("'") for word in words]
    smaller = {"model.slices=[32, 32, 64]": "model.slices=[4, 4, 8]"}
    return [smaller.get(word, word.replace("classes: 32", "classes: 8")) for word in given]


LINES = [line for text in blocks("sh", PAGE) for line in text.splitlines()]
OF_SAMPLERS = {
    name: line for line in LINES for name in re.findall(r"sampler=\{name: (far_\w+),", line)
}
COMMANDS = {
    name: f"zoo run ice_glyphs name={name}_glyphs loss={name}"
    for name in ("spread", "critic", "rival")
} | {
    name: line
    for line in LINES
    if line not in OF_SAMPLERS.values()
    for name in re.findall(r"^zoo run ice_glyphs name=\w+ loss=(\w+)", line)
}


def test_the_page_shows_the_code_of_the_example():
    source = (EXAMPLE / "hooked.py").read_text("utf-8")
    shown = blocks("python", PAGE)
    assert len(shown) == 10
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


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_passes_the_checks(name):
    line = "zoo check samplers far_positives classes=4 per_class=3"
    assert line in LINES
    report = zoo.checks.run(name, {"classes": 4, "per_class": 3}, kind="samplers")
    assert report.ok, str(report.failures)


def test_the_space_passes_the_checks():
    assert "zoo check spaces hellinger" in LINES
    report = zoo.checks.run("hellinger", kind="spaces")
    assert report.ok, str(report.failures)


@pytest.mark.slow
def test_both_checks_use_the_reference_gradient(hooked):
    """Without it they fail, here for a critic that matters as much as the rest."""

    class Declaring(hooked.RivalLoss):
        def error(self, embeddings, critic):
            return 100 * super().error(embeddings, critic)

    class Bare(Declaring):
        reference_gradient = None
        expected_failures: ClassVar = {}

    checked = ["check_gradcheck", "check_float32"]
    assert [r.outcome for r in zoo.checks.run(Bare, only=checked).records] == ["failed"] * 2
    outcomes = [r.outcome for r in zoo.checks.run(Declaring, only=checked).records]
    assert outcomes == ["expected failure", "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_is_trained_with(name, few_glyphs, tmp_path):
    more = [*SMALL, TRAIN, f"output={tmp_path}", *settings(OF_SAMPLERS[name])]
    result = runner.run(load("ice_glyphs", more), reporter=Reporter(quiet=True))
    state = RunFolder(tmp_path / result["run"]).load_checkpoint()["sampler"]
    assert state["number"] == 4
    if name == "far_positives_in_groups":
        assert len(state["groups"].unique()) > 1


@pytest.mark.slow
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
    if name in ("critic", "rival"):
        torch.manual_seed(0)
        assert not torch.equal(state["critic.0.weight"], hooked.CriticLoss(16).critic[0].weight)
