"""What the README and CONTRIBUTING say works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from fnmatch import fnmatch
from pathlib import Path

import commands
import numpy as np
import pytest
import replicas
import torch
from places import ROOT

import zoo
from zoo import config, registry

README = (ROOT / "README.md").read_text("utf-8")


RUNS = (ROOT / "docs" / "runs.md").read_text("utf-8")
DATA = (ROOT / "docs" / "data.md").read_text("utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text("utf-8")


def blocks(language, text=README):
    return commands.blocks(language, text)


def lines():
    return commands.command_lines(README)


def test_there_are_the_two_commands_and_each_sets_up_first():
    first, second = (line for line in lines() if "&&" in line)
    assert first.startswith("pip install ")
    assert first.endswith("&& zoo run configs/ice_glyphs.yaml")
    assert second.startswith("pip install ")
    assert second.endswith('&& pytest -n auto --dist worksteal -m "not slow"')


# Those of a section build on each other.
IN_ORDER = {title: [] for title in ("Your own photographs", "Compare")}
for title in IN_ORDER:
    (text,) = re.findall(rf"^## {title}\n(.*?)^## ", README, re.M | re.S)
    IN_ORDER[title] = commands.single_commands(text)
ZOO = sorted(
    {part for part in commands.single_commands(README) if part.startswith("zoo ")}
    - {part for parts in IN_ORDER.values() for part in parts}
)


def test_the_commands_are_found():
    assert len(ZOO) == 4
    assert [len(parts) for parts in IN_ORDER.values()] == [6, 5]


def test_it_is_a_front_page():
    assert len(README.splitlines()) < 200


def test_the_counts_are_right():
    from zoo.checks import CHECKS

    assert f"{len(zoo.names('losses'))} losses, each checked" in " ".join(README.split())
    assert f"puts it through {len(CHECKS)} checks" in " ".join(README.split())
    others = registry.pml_names("losses")
    if "pml.SmoothAPLoss" in others:  # before version 2.9, which has it, there were fewer
        assert f"all {len(others)} losses of pytorch-metric-learning" in QUICKSTART


@pytest.mark.slow
@pytest.mark.parametrize("line", ZOO)
def test_every_command_works(line, tmp_path, monkeypatch, capsys):
    arguments = line.split()[1:]
    assert commands.run_small(arguments, tmp_path, monkeypatch) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


@pytest.mark.parametrize("title", IN_ORDER)
@pytest.mark.slow
def test_the_commands_of_a_section_work_in_their_order(title, tmp_path, monkeypatch, capsys):
    pytest.importorskip("plotly")
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    replicas.save_photo(tmp_path / "query.jpg", 0, size=(60, 50))
    for line in IN_ORDER[title]:
        arguments = line.split()[1:]
        if arguments[0] == "leaderboard":  # the runs are done on photographs
            arguments = ["image_folder" if a == "glyphs" else a for a in arguments]
        status = commands.run_small(arguments, tmp_path, monkeypatch)
        said = capsys.readouterr()
        assert status == 0, (line, said.err)
        assert said.out or "-o" in arguments
    made = {
        "Your own photographs": ["report/index.html", "sheet.png", "embeddings.npz", "model.onnx"],
        "Compare": ["table.tex"],
    }
    assert all((tmp_path / name).is_file() for name in made[title])


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (path.name, line)
    for path in PAGES
    for line in commands.command_lines(path.read_text("utf-8"))
    if "zoo " in line
]


def test_git_ignores_what_the_commands_write():
    lines = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    ignored = [line.strip("/") for line in lines]
    written = {name for _, line in COMMANDS for name in re.findall(r"(?:-o|--sheet) (\S+)", line)}
    assert {"index", "fast", "report", "sheet.png", "model.onnx", "table.tex"} <= written
    for name in [*written, "photographs", "query.jpg", "runs"]:
        assert any(fnmatch(name, line) for line in ignored), name


def test_a_run_with_other_settings_has_another_name():
    """So that ice_glyphs, say, stays the beginning of one experiment's name."""
    said = [(page, re.search(r"zoo run (.*)", line)) for page, line in COMMANDS]
    runs = [(page, shlex.split(found[1])) for page, found in said if found]
    runs += [
        (path.name, [config, *re.findall(r'"([^"]*)"', settings)])
        for path in PAGES
        for config, settings in re.findall(
            r'runner\.run\("(\w+)", \[(.*?)\]', path.read_text("utf-8")
        )
    ]
    assert len(runs) > 20
    free = ("dataset.root=", "name=", "train.workers=", "train.processes=", "trackers=", "output=")
    for page, words in runs:
        settings = [one for one in words if "=" in one and not one.startswith(free)]
        named = any(one.startswith("name=") for one in words)
        assert named or not settings or "--dry-run" in words, (page, words)


def test_the_python_example_runs():
    code, *_ = blocks("python")
    names = {"embeddings": torch.randn(60, 8), "labels": torch.arange(60) // 5}
    exec(code, names)
    assert isinstance(names["recall"], dict)
    assert names["value"] > 0


@pytest.mark.slow
def test_a_trained_network_is_used_as_the_readme_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands.run(monkeypatch, "run", "ice_glyphs", "train.iterations=1", "device=cpu", "--quiet")
    (folder,) = (tmp_path / "runs").iterdir()
    _, code, _ = blocks("python")
    names = {"run": folder, "images": [np.zeros((32, 32), np.uint8)] * 5}
    exec(code, names)
    assert names["embeddings"].shape == (5, 128)
    assert names["cosine"] == pytest.approx(1)


SEARCH = (ROOT / "docs" / "search.md").read_text("utf-8")


@pytest.mark.slow
def test_searching_goes_as_the_page_says(tmp_path, monkeypatch, capsys):
    """Every command of the page, in its order, and its Python, on photographs that are noise."""
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    commands.photographs(tmp_path)
    for i, name in enumerate(["query.jpg", "a.jpg", "b.jpg", "photo.jpg"]):
        replicas.save_photo(tmp_path / name, i, size=(60, 50))
    todo = [line for block in blocks("sh", SEARCH) for line in block.splitlines()]
    assert len(todo) == 10
    for line in todo:
        arguments = line.split()[1:]
        if "ivfpq" in arguments:
            for i in range(256):
                replicas.save_photo(tmp_path / "photographs" / "more" / f"{i}.png", i)
        if arguments[0] == "run":
            arguments += ["model.backbone={name: convnet, width: 4, blocks: 3}", "device=cpu"]
            arguments += ["images={resize: 40, crop: 32}", "train.iterations=2"]
            arguments += ["sampler.classes=3", "sampler.per_class=2", "model.embedding_size=8"]
        assert commands.run(monkeypatch, *arguments) == 0, (line, capsys.readouterr().err)
        printed = capsys.readouterr().out
        assert printed, line
    (shown,) = blocks("text", SEARCH)
    swapped = printed.split("\n\n", 1)[1].replace("40, 40", "128, 128")
    swapped = re.sub(r"\b32\b", "112", swapped)
    swapped = re.sub('digest = ".*"', 'digest = "5b0c…"', swapped.replace("import io\n", ""))
    onnx = shown.replace("import onnxruntime", "import torch").replace("model.onnx", "model.pt2")
    assert swapped.splitlines()[:-2] == onnx.splitlines()[:-2]
    for code in blocks("python", SEARCH):
        exec(code, {"print": lambda *_: None})


def test_the_loss_in_the_readme_is_the_example():
    example = ROOT / "examples" / "cosine-contrastive"
    *_, code = blocks("python")
    assert textwrap.dedent(code) == (example / "cosine_contrastive.py").read_text("utf-8")
    (toml,) = blocks("toml")
    command, _, shipped = (example / "pyproject.toml").read_text("utf-8").partition("\n")
    assert command.startswith("# pip install")
    assert textwrap.dedent(toml) == shipped


def test_the_pages_say_what_the_folder_config_needs():
    sampler = config.load("ice_folder", ["dataset.root=x"]).sampler.arguments
    needs = f"A batch takes {sampler['per_class']} images of each of {sampler['classes']} classes"
    for page in (DATA, QUICKSTART, SEARCH):
        text = " ".join(page.split())
        assert needs in text
        assert f"for training: with fewer than {2 * sampler['classes']}" in text
        assert "set `sampler.classes` to" in text
        assert "at most half their number" in text
    text = " ".join(README.split())
    assert f"{sampler['classes']} in a batch: with fewer than {2 * sampler['classes']}" in text
    assert "set `sampler.classes` to at most half their number" in text


def test_the_pages_agree_about_the_last_digits():
    said = (
        "With another processor, another number of threads or another version of PyTorch, the last"
    )
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    faq = (ROOT / "docs" / "faq.md").read_text("utf-8")
    for page in (QUICKSTART, results, faq):
        text = " ".join(page.split())
        assert "the same machine with the same number of threads gives" in text
        assert f"{said} digits differ" in text


def test_the_page_of_search_crops_as_its_config_does():
    images = config.load("ice_folder", ["dataset.root=x"]).images
    assert f"image.resize(({images.resize}, {images.resize})" in SEARCH
    assert f"(side - {images.crop}) / 2" in SEARCH


def test_the_error_that_is_shown_is_the_one_that_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("extends: ice_glyphs\nloss: {scael: 3}\ntrain: {iteratons: 3}\n")
    with pytest.raises(zoo.UserError) as error:
        config.load("x.yaml")
    assert f"error: {error.value}\n" in blocks("text", RUNS)


def test_the_config_that_is_shown_is_the_shipped_one(tmp_path):
    (text,) = blocks("yaml", RUNS)
    (tmp_path / "ice_glyphs.yaml").write_text(text)
    assert config.load(tmp_path / "ice_glyphs.yaml") == config.load("ice_glyphs")


def test_every_shipped_config_opens_with_the_command_that_runs_it():
    folders = ("base", "tables")
    shipped = [p for p in (ROOT / "configs").rglob("*.yaml") if p.parent.name not in folders]
    assert sorted(p.relative_to(ROOT / "configs").with_suffix("").as_posix() for p in shipped) == (
        config.shipped()
    )
    for path in shipped:
        first = path.read_text("utf-8").splitlines()[0]
        assert first.startswith(f"# zoo run {path.relative_to(ROOT).as_posix()}")


def test_the_loss_in_contributing_is_python():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    code, line, test = blocks("python", text)
    compile(code, "CONTRIBUTING.md", "exec")
    exec(test.replace('"mine"', '"ice"'), {"zoo": zoo})
    compile("{" + line + "}", "CONTRIBUTING.md", "eval")


def test_nothing_in_the_docs_is_left_to_fill_in():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(
            r"\b(TODO|FIXME|TIME_GLYPHS|RESULTS\n|SPEED\n)", path.read_text("utf-8")
        )


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.slow
def test_the_tools_find_the_two_commands():
    for which in ("run", "test"):
        tool = [sys.executable, str(ROOT / "tools" / "readme_commands.py"), which]
        done = subprocess.run(tool, capture_output=True, text=True, check=True)
        assert done.stdout.strip() in lines()


@pytest.mark.slow
def test_the_page_of_losses_is_made_from_the_classes():
    tool = [sys.executable, str(ROOT / "tools" / "make_loss_docs.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "losses.md").read_text("utf-8")
    assert re.findall(r"^## (\w+)$", page, re.M) == zoo.names("losses")


@pytest.mark.slow
def test_the_page_of_checks_is_made_from_the_functions():
    tool = [sys.executable, str(ROOT / "tools" / "make_check_docs.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "checks.md").read_text("utf-8")
    assert re.findall(r"^## (\w+)$", page, re.M) == list(zoo.checks.summaries())


def test_the_tables_are_made_from_the_committed_results():
    tool = [sys.executable, str(ROOT / "tools" / "make_tables.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^<!-- table: \w+ -->$", README, re.M)) == 1
