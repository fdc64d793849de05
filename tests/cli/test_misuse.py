"""Every public function with wrong values in every argument: a clear error of our own, or a result.

What Python says itself of a call (a missing argument) is Python's; what a function is given has to
be judged before it is used. A raw AttributeError, a KeyError, an error of NumPy or torch, or a hang
is a fault, and so is a TypeError that is not about the call.
"""

from __future__ import annotations

import os
import signal
import warnings

import numpy as np
import pytest
import torch
from small_run import small_run

import zoo
from zoo.comparing import compare, significance, standings
from zoo.config import loading
from zoo.evaluation import measures
from zoo.progress import Reporter
from zoo.registry import components
from zoo.runs import folder as runs_folder

QUIET = Reporter(quiet=True)
HANG = 60  # seconds


def generator():
    yield 1


WRONG = {
    "None": lambda here: None,
    "5": lambda here: 5,
    "-1": lambda here: -1,
    "a half": lambda here: 0.5,
    "nan": lambda here: float("nan"),
    "True": lambda here: True,
    "huge": lambda here: 10**30,
    "longer than Python writes": lambda here: 10**5000,
    "empty text": lambda here: "",
    "text": lambda here: "no such",
    "control characters": lambda here: "a\0\x1b[31m",
    "half a character": lambda here: "\ud800",
    "bytes": lambda here: b"",
    "object": lambda here: object(),
    "list": lambda here: [],
    "list of None": lambda here: [None],
    "dict": lambda here: {},
    "dict of objects": lambda here: {1: object()},
    "list of dicts": lambda here: [{}],
    "set": lambda here: set(),
    "generator": lambda here: generator(),
    "class": lambda here: int,
    "array": lambda here: np.zeros((2, 2)),
    "square of integers": lambda here: np.zeros((2, 2), np.int64),
    "empty array": lambda here: np.zeros((0, 3), np.uint8),
    "tensor": lambda here: torch.zeros(2, 2),
    "folder": lambda here: here / "empty",
    "fifo": lambda here: here / "fifo",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return what there is to call: by name, a function and arguments that fit."""
    here = tmp_path_factory.mktemp("misuse")
    run = small_run(here)
    (here / "empty").mkdir()
    os.mkfifo(here / "fifo")
    photos = here / "photographs"
    model = zoo.load(run)
    index = zoo.index.build(model, photos, here / "index", reporter=QUIET)
    found = zoo.leaderboard.load(here / "runs")
    (board,) = zoo.leaderboard.boards(found)
    folder = runs_folder.RunFolder(run)
    settings = loading.load_run(run / "config.yaml")
    tested = compare.read([folder])
    rng = np.random.default_rng(0)
    items = {"embeddings": rng.normal(size=(12, 4)), "labels": np.repeat(np.arange(4), 3)}
    gallery = {"gallery": items["embeddings"], "gallery_labels": items["labels"]}
    image = np.zeros((40, 40, 3), np.uint8)
    some = {"batch_size": None, "max_pixels": 10**6, "reporter": QUIET}
    kind, name = {"kind": "losses"}, {"name": "ice"}
    few = {"only": ["check_permutation"]}
    subject = zoo.checks.Subject("ice")

    class Mine(torch.nn.Module):
        pass

    return here, {
        "build": (lambda kind, name: zoo.build(kind, name), kind | name),
        "describe": (zoo.describe, kind | name),
        "component": (components.component, kind | name),
        "registry.load": (components.load, kind | name),
        "names": (zoo.names, kind),
        "pml_names": (components.pml_names, kind),
        "register": (
            lambda kind, name, cls: zoo.register(kind, name)(cls),
            kind | {"name": "mine", "cls": Mine},
        ),
        "load": (zoo.load, {"run": run, "device": "cpu"}),
        "model": (model, {"images": [image], "workers": 0, **some}),
        "one_of_several": (lambda image: model([image]), {"image": image}),
        "embed_folder": (model.embed_folder, {"folder": photos, **some}),
        "embed_pixels": (model.embed_pixels, {"pixels": torch.zeros(2, 3, 8, 8).byte()}),
        "embed_test": (model.embed_test, {"reporter": QUIET}),
        "checks.run": (zoo.checks.run, {"loss": "ice", "arguments": {}, **few}),
        "checks_for": (zoo.checks.checks_for, {"loss": "ice"}),
        "records": (
            lambda subject, only: list(zoo.checks.records(subject, only)),
            {"subject": subject, **few},
        ),
        "parametrize": (zoo.checks.parametrize_with_checks, {"losses": ["ice"]}),
        "Subject": (zoo.checks.Subject, {"loss": "ice", "arguments": {}}),
        "runner.run": (
            zoo.runner.run,
            {"config": settings, "overrides": [], "reporter": QUIET, "test": True},
        ),
        "config.load": (loading.load, {"source": "ice_glyphs", "overrides": []}),
        "config.load_all": (
            loading.load_all,
            {"source": "ice_glyphs", "overrides": [], "sweeps": [], "seeds": None},
        ),
        "config.dump": (loading.dump, {"config": settings}),
        "index.build": (
            zoo.index.build,
            {
                "run": model,
                "images": photos,
                "kind": "flat",
                "folder": here / "another",
                "device": "cpu",
                **some,
            },
        ),
        "index.open": (zoo.index.open, {"folder": here / "index", "run": run, "device": "cpu"}),
        "search": (index.search, {"images": [image], "k": 3, "exclude_self": False}),
        "search_embeddings": (
            index.search_embeddings,
            {
                "embeddings": np.ones((1, 8), np.float32),
                "k": 3,
                "paths": None,
                "exclude_self": False,
            },
        ),
        "use": (index.use, {"run": run}),
        "export.run": (zoo.export.export, {"run": "no such run", "path": here / "x.pt2"}),
        "export": (
            lambda **given: zoo.export.export(model, **given),
            {"path": here / "nowhere" / "x.pt2", "format": None, "opset": None, "reporter": QUIET},
        ),
        "snippet": (zoo.export.snippet, {"exported": None}),
        "recall_at_k": (
            zoo.evaluate.recall_at_k,
            items | gallery | {"ks": [1], "backend": "torch", "block": None},
        ),
        "ranks": (
            zoo.evaluate.ranks,
            items | gallery | {"backend": "torch", "limit": None, "block": None},
        ),
        "Recall": (zoo.evaluate.Recall, {"ranks": torch.ones(3).int(), "ks": [1]}),
        "leaderboard.load": (
            lambda folder: zoo.leaderboard.load(folder),
            {"folder": here / "runs"},
        ),
        "boards": (zoo.leaderboard.boards, {"results": found, "apart": ()}),
        "tables": (
            zoo.leaderboard.tables,
            {
                "results": found,
                "shape": "runs",
                "wanted": None,
                "spread": "std",
                "sort": None,
                "apart": (),
                "paper": False,
                "others": False,
                "significance": False,
            },
        ),
        "shaped_tables": (
            zoo.leaderboard.tables,
            {
                "results": found,
                "shape": "table3",
                "wanted": {"dataset": ["*"]},
                "spread": "std",
                "paper": True,
                "others": True,
            },
        ),
        "render": (
            zoo.leaderboard.render,
            {"made": zoo.leaderboard.tables(found), "kind": "markdown", "standalone": False},
        ),
        "to_table": (zoo.leaderboard.to_table, {"board": board, "width": None, "highlight": None}),
        "average": (zoo.leaderboard.average, {"recalls": [{"1": 0.5}]}),
        "measure": (measures.measure, {"names": ["map_at_r"], **items}),
        "map_at_r": (measures.map_at_r, items),
        "r_precision": (measures.r_precision, items),
        "nmi": (measures.nmi, {"labels": items["labels"], "clusters": items["labels"]}),
        "ami": (measures.ami, {"labels": items["labels"], "clusters": items["labels"]}),
        "mcnemar": (significance.mcnemar, {"only_a": 3, "only_b": 4}),
        "sign_flip": (significance.sign_flip, {"ahead": np.array([1, 2, -1])}),
        "bootstrap": (
            significance.bootstrap,
            {"ahead": np.array([1, 2, -1]), "sizes": np.array([3, 3, 3]), "share": 0.95},
        ),
        "t_test": (significance.t_test, {"differences": [1.0, 2.0, 3.0], "share": 0.95}),
        "holm": (significance.holm, {"ps": [0.1, 0.2]}),
        "standings": (standings.standings, {"rows": [[folder]], "k": 1}),
        "compare.read": (compare.read, {"folders": [folder]}),
        "compare": (compare.compare, {"a": tested, "b": tested, "ks": None}),
        "RunFolder": (runs_folder.RunFolder, {"path": run}),
        "find": (runs_folder.RunFolder.find, {"run": run, "directory": here / "runs"}),
        "of": (runs_folder.RunFolder.of, {"config": settings}),
    }


NAMES = [
    "build",
    "describe",
    "component",
    "registry.load",
    "names",
    "pml_names",
    "register",
    "load",
    "model",
    "embed_folder",
    "embed_pixels",
    "embed_test",
    "checks.run",
    "checks_for",
    "records",
    "parametrize",
    "Subject",
    "runner.run",
    "config.load",
    "config.load_all",
    "config.dump",
    "index.build",
    "index.open",
    "search",
    "search_embeddings",
    "use",
    "export.run",
    "export",
    "snippet",
    "recall_at_k",
    "ranks",
    "Recall",
    "leaderboard.load",
    "boards",
    "tables",
    "render",
    "to_table",
    "average",
    "measure",
    "map_at_r",
    "r_precision",
    "nmi",
    "ami",
    "mcnemar",
    "sign_flip",
    "bootstrap",
    "t_test",
    "holm",
    "standings",
    "compare.read",
    "compare",
    "RunFolder",
    "find",
    "of",
    "one_of_several",
    "shaped_tables",
]

# What is allowed, and waits or takes long: a config may come through a pipe; five processes; of no
# checks named, all are run.
DEAR = {("model", "workers", "5"), ("runner.run", "config", "fifo")}
DEAR |= {(f"config.{name}", "source", "fifo") for name in ("load", "load_all")}
DEAR |= {(name, "only", none) for name in ("checks.run", "records") for none in ("list", "set")}


def test_all_are_tried(world):
    assert sorted(world[1]) == sorted(NAMES)


@pytest.fixture
def no_hang():
    """Fail a test that waits for something."""

    def ring(*_):
        raise AssertionError(f"hangs: {HANG} s")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_values(world, name, no_hang, monkeypatch):
    here, calls = world
    monkeypatch.chdir(here)
    monkeypatch.setattr(components, "_registered", {})
    function, fitting = calls[name]
    raw = []
    for argument in fitting:
        for label, make in WRONG.items():
            if (name, argument, label) in DEAR:
                continue
            signal.alarm(HANG)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**{**fitting, argument: make(here)})
            except zoo.UserError as error:
                message = str(error)
                if not message or any(not c.isprintable() and c != "\n" for c in message):
                    raw.append(f"{argument}={label}: {message!r}")
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                raw.append(f"{argument}={label}: {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)
