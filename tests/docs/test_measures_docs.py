"""What docs/compare.md and docs/measures.md say works."""

from __future__ import annotations

import re

import numpy as np
import pytest
from boards import result
from places import DOCS

from zoo import config
from zoo.evaluation.names import MEASURES
from zoo.runs.folder import RunFolder

PAGES = {name: (DOCS / name).read_text("utf-8") for name in ("compare.md", "measures.md")}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", "\n".join(PAGES.values()), re.S)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def test_the_commands_are_found():
    assert len(COMMANDS) == 7


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_works(line, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name, digest in (("ice_glyphs", "45788d16"), ("rll_glyphs", "3995e4c6")):
        for seed in (0, 1):
            ranks = np.random.default_rng(seed).integers(1, 9, 40).astype(np.int32)
            recall = {k: float((ranks <= k).mean()) for k in (1, 2)}
            found = result(name, recall, seed=seed, digest=digest)
            found["measures"] = {"map_at_r": 0.5, "nmi": 0.5}
            folder = RunFolder(tmp_path / "runs" / found["run"])
            folder.path.mkdir(parents=True)
            folder.write("config.yaml", b"")
            folder.finish(found, ranks, np.arange(40) // 4)
    rng = np.random.default_rng(0)
    given = {"embeddings": rng.random((40, 4)), "labels": np.arange(40) // 4}
    for name in ("embeddings", "queries", "gallery"):
        np.savez(tmp_path / f"{name}.npz", **given)
    np.save(tmp_path / "embeddings.npy", given["embeddings"])
    (tmp_path / "labels.txt").write_text("\n".join(map(str, given["labels"])))
    status, out, err = command(*line.split()[1:])
    assert status == 0, err
    assert out


def test_the_config_is_one(tmp_path):
    (text,) = blocks("yaml")
    (tmp_path / "x.yaml").write_text(f"extends: ice_glyphs\n{text}")
    assert config.load(tmp_path / "x.yaml").evaluate.measures == ["map_at_r", "r_precision"]


def test_the_python_example_runs():
    (code,) = blocks("python")
    names = {"embeddings": np.random.default_rng(0).random((40, 4)), "labels": np.arange(40) // 20}
    exec(code, names)
    assert names["values"].keys() == {"map_at_r", "ami"}


def test_every_measure_is_told():
    for name, title in MEASURES.items():
        assert name in PAGES["measures.md"], name
        assert f"| {title} |" in PAGES["measures.md"], title
