"""``zoo plot``: figures for papers."""

from __future__ import annotations

import re

import matplotlib as mpl
import pytest
import report_runs
from PIL import Image

from zoo.report import figures


@pytest.fixture
def swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for scale in (1, 16, 64):
        for seed in (0, 1):
            recall = 0.5 + scale / 200 + seed / 50
            report_runs.made_up(
                tmp_path / "runs", "ice_glyphs", f"loss.scale={scale}", recall=recall, seed=seed
            )
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
@pytest.mark.parametrize("what", ["curves", "sweep"])
def test_a_figure_is_written_in_each_format(what, suffix, swept, command):
    (swept / "figures").mkdir()
    status, out, err = command("plot", what, "runs", "-o", f"figures/x{suffix}")
    assert (status, out, err) == (0, f"figures/x{suffix}\n", "")
    data = (swept / "figures" / f"x{suffix}").read_bytes()
    assert data.startswith({".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])
    if suffix == ".pdf":
        assert b"/Subtype /Image" not in data  # lines, not pixels
        assert b"/Type3" not in data
    again = command("plot", what, "runs", "-o", f"figures/y{suffix}")
    assert again[0] == 0
    assert (swept / "figures" / f"y{suffix}").read_bytes() == data


@pytest.mark.slow
def test_of_an_experiment_all_seeds_are_drawn(swept, command):
    name = next((swept / "runs").iterdir()).name.rpartition("-s")[0]
    assert len(figures.find_runs([name])) == 2
    status, _, err = command("plot", "curves", name, "-o", "x.png")
    assert (status, err) == (0, "")


@pytest.mark.slow
def test_a_map_has_pictures(tmp_path, command):
    folder = report_runs.trained(tmp_path / "runs")
    status, _, err = command("plot", "tsne", folder, "-o", tmp_path / "map.pdf", "--items", "40")
    assert status == 0
    assert "40 of 60 test images, about the same share of each class" in err
    assert (tmp_path / "map.pdf").read_bytes().count(b"/Subtype /Image") > 3
    status, _, _ = command("plot", "tsne", folder, "-o", tmp_path / "map.png")
    assert status == 0
    assert Image.open(tmp_path / "map.png").size == (2070, 2070)


@pytest.mark.slow
def test_names_are_text_and_unfinished_runs_are_drawn(swept, command):
    folder = sorted(swept.glob("runs/*-s0"))[0]
    (folder / "result.json").unlink()
    folder.rename(folder.with_name("$x^{ <b>"))
    status, _, err = command("plot", "curves", "runs", "-o", "x.svg")
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["curves", "runs", "-o", "x.gif"], "x.gif: a figure is a .pdf, .svg or .png file"),
        (["curves", "nothing", "-o", "x.pdf"], "nothing: not a run folder"),
        (["sweep", "alone", "-o", "x.pdf"], "not a sweep: no two differ in one number only"),
        (["sweep", "runs", "--setting", "seed", "-o", "x.pdf"], "loss.scale are"),
        (["tsne", "alone", "-o", "x.pdf"], "has no checkpoint.pt"),
        (["curves", "alone", "-o", "runs/x.pdf/y.pdf"], "there is no folder"),
        (["curves", "alone", "-o", "nodir/x.pdf"], "nodir/x.pdf: there is no folder"),
        (["sweep", "runs", "-o", "nodir/x.pdf"], "nodir; make it first"),
        (["tsne", "alone", "-o", "nodir/x.pdf"], "nodir; make it first"),
        (["curves", "", "-o", "x.pdf"], "error: '': not a run folder"),
    ],
)
def test_what_is_wrong_is_told(arguments, said, swept, command):
    report_runs.made_up(swept / "alone")
    (swept / "runs" / "x.pdf").write_text("")
    status, out, err = command("plot", *arguments)
    assert (status, out) == (2, "")
    assert said in re.sub(r"\s+", " ", err)
    assert not (swept / "nodir").exists()


@pytest.mark.parametrize("name", ["ranks.npy", "labels.npy"])
def test_curves_need_no_file_of_queries(swept, command, name):
    folder = report_runs.made_up(swept / "alone")
    (folder / name).unlink(missing_ok=True)
    (run,) = figures.find_runs([str(folder)])
    points = figures._recall_by_k(run)
    assert {1: 100 * run.result["recall"]["1"]}.items() <= dict(points).items()
    assert command("plot", "curves", "alone", "-o", "x.png")[::2] == (0, "")


def test_a_run_without_a_logged_loss(swept, command):
    folder = report_runs.made_up(swept / "alone")
    (folder / "metrics.jsonl").unlink()
    status, _, err = command("plot", "curves", "alone", "-o", "x.pdf")
    assert status == 2
    assert "no loss was logged" in err


@pytest.mark.slow
def test_a_figure_needs_no_latex_whatever_matplotlibrc_says(swept, command, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(mpl.rcParams, "text.usetex", True)
    for what in ("curves", "sweep"):
        assert command("plot", what, "runs", "-o", "x.pdf")[::2] == (0, "")
