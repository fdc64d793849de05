"""Run the commands of the documents, but small: a few iterations on a few images."""

from __future__ import annotations

import re
import sys

import pydantic
import pytest
import replicas

from zoo import runner
from zoo.cli import main
from zoo.plans import scheduler as plans_scheduler
from zoo.progress import Reporter

# Files made from the schema are made with a recent pydantic; older versions use other words.
PYDANTIC = tuple(map(int, pydantic.VERSION.split(".")[:2]))
with_recent_pydantic = pytest.mark.skipif(PYDANTIC < (2, 12), reason="made with a newer pydantic")
TINY = ["dataset={name: image_folder, root: photographs}", "images={resize: 32}"]
TINY += [
    "sampler={name: m_per_class, classes: 3, per_class: 2}",
    "model.backbone.width=2",
    "model.embedding_size=2",
]


def blocks(language, text):
    """Return the code blocks of a language in a document."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.S | re.M)


def command_lines(text):
    """Return every command line of a document, without comments."""
    found = [
        line.split(" #")[0].strip() for block in blocks("sh", text) for line in block.splitlines()
    ]
    return [line for line in found if line and not line.startswith("#")]


def single_commands(text):
    """Return the single commands of a document, without redirections."""
    return [p.split(" > ")[0].strip() for line in command_lines(text) for p in line.split("&&")]


def run_small(arguments, tmp_path, monkeypatch):
    """Run a command of zoo; return its exit status.

    A run is reduced to two iterations on a few photographs, which are made. For a leaderboard, a
    run is made.
    """
    monkeypatch.chdir(tmp_path)
    arguments = [a.strip("'") for a in arguments if not a.startswith("train.iterations=")]
    if arguments[0] == "tune":
        arguments[arguments.index("--trials") + 1] = "2"
    if arguments[0] in ("run", "tune"):
        arguments += ["device=cpu"]
        arguments += ["train.iterations=2"] * ("pretrained_glyphs" not in arguments)
        main_job = arguments[1:-2] == ["configs/ice_glyphs.yaml"]  # keeps its data set
        if not main_job and "dataset.root=photographs" not in arguments:
            photographs(tmp_path)
            arguments += TINY
            monkeypatch.setattr(plans_scheduler.Scheduler, "run", run_in_process)
    if "dataset.root=photographs" in arguments:
        arguments += ["model.backbone.weights=null", "images.resize=40", "images.crop=32"]
        arguments += ["sampler.classes=3", "sampler.per_class=2"]
    if "photographs" in " ".join(arguments):
        photographs(tmp_path)
    if arguments[0] == "leaderboard" and not (tmp_path / "runs").exists():
        run(monkeypatch, "run", "ice_glyphs", "train.iterations=0", "loss=null", "device=cpu")
    return run(monkeypatch, *arguments)


def run_in_process(scheduler):
    """Do all runs in this process, which has imported torch; other tests start processes."""
    waiting = iter(scheduler._waiting)
    while (job := next(waiting, None) or scheduler._more()) is not None:
        runner.run(job.config, reporter=Reporter(quiet=True), test=job.test)
        job.state = "finished"
        scheduler._observe(job)


def run(monkeypatch, *arguments):
    """Run a command of zoo as it is; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["zoo", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    return end.value.code or 0


def photographs(folder):
    """Make a few photographs in a folder, unless they exist."""
    root = folder / "photographs"
    if not root.exists():
        classes = {"train": 10, "test": 2}
        replicas.photographs(root, classes, each=3, size=(56, 48), suffix=".jpg")
