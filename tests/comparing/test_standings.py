"""Tables of runs with marks of significance and with more measures."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from boards import result

from zoo import leaderboard
from zoo.runs.folder import RunFolder

LABELS = np.repeat(np.arange(40), 10)


def write(place, name, share, **more):
    """Write a run that answers this share of the queries."""
    ranks = np.where(np.random.default_rng(0).permutation(400) < 400 * share, 1, 9).astype(np.int32)
    found = result(name, {1: float((ranks <= 1).mean())}) | more
    folder = RunFolder(place / found["run"])
    folder.path.mkdir(parents=True)
    folder.finish(found, ranks, LABELS)


@pytest.fixture
def runs(tmp_path):
    write(tmp_path, "best", 0.85, measures={"map_at_r": 0.5, "nmi": 0.75})
    write(tmp_path, "near", 0.845)
    write(tmp_path, "far", 0.5)
    return tmp_path


def test_rows_that_are_not_worse_have_a_mark(runs, command):
    status, out, _ = command("leaderboard", runs, "--significance")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()[2:5]]
    assert names == ["best", "near¹", "far"]
    note = "¹ not significantly worse than the best at R@1: permutation test over 40 classes, 1 run"
    assert note in out
    assert "corrected for the number of rows (Holm)" in out
    assert "significant" not in command("leaderboard", runs)[1].lower()


def test_a_row_that_cannot_be_compared_says_why(runs, command):
    (runs / "near-aa-s0" / "ranks.npy").unlink()
    _, out, _ = command("leaderboard", runs, "--significance")
    assert "¹ cannot be compared with the best: " in out
    assert "ranks.npy: missing" in out


def test_every_format_has_the_marks(runs):
    made = leaderboard.tables(leaderboard.load(runs), significance=True)
    for kind in leaderboard.FORMATS:
        assert "not significantly worse than the best at R@1" in leaderboard.render(made, kind)


def test_published_shapes_have_none(runs, command):
    status, _, err = command("leaderboard", runs, "--significance", "--shape", "table3")
    assert status == 2
    assert err == "error: --significance: is for tables of runs, not for --shape table3\n"


def test_measures_have_columns(runs, command):
    _, heads, best, near, _ = command("leaderboard", runs)[1].splitlines()[:5]
    assert heads.split()[-4:] == ["R@1", "MAP@R", "NMI", "minutes"]
    assert best.split()[-4:] == ["85.00", "50.00", "75.00", "1.5"]
    assert near.split()[-4:] == ["84.50", "–", "–", "1.5"]


def test_machines_read_the_measures(runs):
    made = leaderboard.tables(leaderboard.load(runs))
    (table,) = json.loads(leaderboard.render(made, "json"))["tables"]
    measured = table["rows"][0]["entries"][0]["measures"]
    assert [(m["measure"], m["k"], m["mean"]) for m in measured] == [
        ("recall", 1, 85),
        ("map_at_r", None, 50),
        ("nmi", None, 75),
    ]
    rows = list(csv.DictReader(io.StringIO(leaderboard.render(made, "csv"))))
    assert [(r["measure"], r["k"], r["mean"]) for r in rows[1:3]] == [
        ("map_at_r", "", "50.0"),
        ("nmi", "", "75.0"),
    ]


def test_nmi_of_few_images_is_warned_of(tmp_path, command):
    data = {"name": "sop", "fingerprint": "f0", "classes": 11_316, "images": 60_502}
    write(tmp_path, "a", 0.8, dataset=data, measures={"nmi": 0.9})
    assert "classes have only 5.3 images on average" in command("leaderboard", tmp_path)[1]
