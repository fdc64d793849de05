"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest

os.environ.pop("COLUMNS", None)  # tables are as wide as without a terminal, wherever tests run

# Workers that stand beside each other share the cores: with threads of their own each, they would
# wait for one another. Set before torch is imported, so that commands that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs the command: (status, stdout, stderr)."""
    from zoo import progress
    from zoo.cli import main

    monkeypatch.setattr(progress, "_EVERY", 1e9)  # a busy machine would tell how far it is

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["zoo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return run


@pytest.fixture(scope="session")
def cache_of_few_glyphs(tmp_path_factory):
    """A cache folder with the first 200 classes of glyphs only: a run takes a third of the time."""
    from zoo.datasets import glyphs

    whole = glyphs._load()
    few = whole._replace(codes=whole.codes[:200], counts=whole.counts[:200])
    few = few._replace(images=whole.images[: few.counts.sum()])
    folder = tmp_path_factory.mktemp("few_glyphs")
    name = f"glyphs-{glyphs._key(glyphs._find_faces())}.npz"
    np.savez(folder / name, **few._asdict())
    return folder


@pytest.fixture(scope="module")
def few_glyphs(cache_of_few_glyphs):
    """Let the data set of glyphs be small in a module, in this process and in those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(cache_of_few_glyphs))
        yield


@pytest.fixture(scope="session")
def run_made_once(tmp_path_factory):
    """The folder of a small finished run, with photographs two folders up; not to be changed."""
    from finished import run_on_photographs

    return run_on_photographs(tmp_path_factory.mktemp("made_once"))


@pytest.fixture(scope="module")
def finished_run(run_made_once, tmp_path_factory):
    """A copy of it for a module, which may change it."""
    return _copied(run_made_once, tmp_path_factory)


@pytest.fixture(scope="session")
def noisy_run_made_once(tmp_path_factory):
    """The folder of a run of small_run.py; not to be changed."""
    from small_run import small_run

    return small_run(tmp_path_factory.mktemp("noisy"))


@pytest.fixture(scope="module")
def noisy_run(noisy_run_made_once, tmp_path_factory):
    """A copy of it for a module, which may change it."""
    return _copied(noisy_run_made_once, tmp_path_factory)


def _copied(run, tmp_path_factory):
    """Return a copy of the folder of a run, with a copy of the photographs two folders up."""
    here = shutil.copytree(run.parents[1], tmp_path_factory.mktemp("copy") / "here")
    return here / "runs" / run.name
