"""What results look like where somebody evaluates them: text, HTML, data frames."""

from __future__ import annotations

import copy
import json
import pickle
import sys

import numpy as np
import pytest
import torch
from rich import console as of_rich

import zoo
from zoo import runner
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.tables.notebook import RunResult

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def run(noisy_run):
    return noisy_run


@pytest.fixture(scope="module")
def boards(run):
    return zoo.leaderboard.boards(zoo.leaderboard.load(run.parent))


def test_a_run_shows_its_row_and_is_a_dict(run):
    kept = json.loads((run / "result.json").read_text())
    result = RunResult(kept)
    shown = str(result)
    assert shown.startswith(f"run {run.name}\nRecall@K in percent, photographs")
    assert f"{100 * kept['recall']['1']:.2f}" in shown
    assert "<table>" in result._repr_html_()
    assert result == kept
    assert json.dumps(result) == json.dumps(kept)
    assert result.to_pandas()["k"].tolist() == [1, 2, 4, 8]
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert (type(other), other) == (RunResult, kept)


def test_running_returns_what_shows_itself(run):
    config = zoo.config.loading.load_run(run / "config.yaml")
    assert repr(runner.run(config, reporter=QUIET)).startswith(f"run {run.name}\n")


def test_a_run_that_waits_for_being_chosen(run):
    waiting = RunResult({"run": "x\x1b", "validation": {"recall": {"1": 0.25, "2": 0.5}}})
    said = "run x\\x1b: validation R@1 25.00  R@2 50.00; the test classes are not measured"
    assert str(waiting) == said
    assert waiting._repr_html_() is None


def test_boards_and_tables_show_their_rows(boards, run):
    tables = zoo.leaderboard.tables(zoo.leaderboard.load(run.parent))
    for shown in (boards, boards[0], tables, tables[0]):
        assert "ice_glyphs" in repr(shown)
        html = shown._repr_html_()
        assert html.count("<table>") == 1
        assert "<body" not in html
        assert ":root" not in html  # it would restyle the notebook
    assert boards == list(boards)
    assert repr(boards[:0]) == "[]"
    assert repr(type(boards)()) == ""


def test_html_of_strangers_names_is_text(run):
    (result,) = zoo.leaderboard.load(run.parent)
    boards = zoo.leaderboard.boards([result | {"config": "<script>x</script>"}])
    assert "<script>" not in boards._repr_html_()


def test_a_data_frame_has_every_number(boards):
    pytest.importorskip("pandas")
    frame = boards[0].to_pandas()
    (row,) = boards[0].rows
    assert frame["mean"].tolist() == [row.recall[k].mean for k in (1, 2, 4, 8)]
    assert frame["config"].unique().tolist() == ["ice_glyphs"]
    assert boards.to_pandas().equals(frame)


def test_without_pandas_it_says_what_to_install(boards, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(zoo.UserError, match="pip install pandas"):
        boards.to_pandas()


def test_a_report_tells_what_failed_why_and_on_which_batch():
    report = zoo.checks.run(
        "pml.NTXentLoss", {"temperature": 0.015625}, ["check_large_gaps", "check_permutation"]
    )
    for text in (str(report), repr(report)):
        first, _, rest = text.partition("\n\n")
        assert first.startswith("pml.NTXentLoss(temperature=0.015625): 1 failed, 1 passed")
        assert rest.startswith("check_large_gaps: every positive pair is violated")
        assert "images:\n  label" in rest
    assert "\n" not in report.summary


def test_a_report_tells_a_fault_that_shows_everywhere_once():
    class Broken(torch.nn.Module):
        def forward(self, *given, **named):
            raise RuntimeError("nothing works")

    text = str(zoo.checks.run(Broken))
    assert text.count("nothing works") == 1
    assert "the same in check_" in text


def test_a_report_of_a_sound_loss_is_a_line():
    assert "\n" not in str(zoo.checks.run("ice", only=["check_permutation"]))


def test_objects_say_what_they_are(run, tmp_path):
    model = zoo.load(run, device="cpu")
    assert repr(model) == f"<Trained {run.name}: convnet, 8-d, on cpu>"
    assert repr(model.folder) == f"<RunFolder {run}: finished>"
    assert repr(RunFolder(tmp_path / "\x1b")) == f"<RunFolder {tmp_path}/\\x1b: not finished>"
    assert repr(zoo.checks.Subject("ice", {"scale": 2})) == "<Subject ice(scale=2)>"
    recall = zoo.evaluate.recall_at_k(np.eye(3), np.array([0, 0, 1]), [1])
    assert repr(recall) == f"Recall({dict(recall)}, 3 queries, 1 unmatched)"


def test_an_index_says_what_it_is(run, tmp_path):
    pytest.importorskip("faiss")
    photos = run.parent.parent / "photographs"
    index = zoo.index.build(zoo.load(run), photos, tmp_path / "index", reporter=QUIET)
    assert repr(index) == f"<Index {tmp_path}/index: 36 images, flat, 8-d, of {run.name}>"


def test_in_a_notebook_progress_goes_to_the_stream(run, boards, monkeypatch, capsys):
    monkeypatch.setattr(of_rich, "_is_jupyter", lambda: True)  # IPython is not even there
    reporter = Reporter()
    reporter.say("one line")
    assert list(reporter.track([1, 2], 2, "working")) == [1, 2]
    with reporter.training(0, 2) as report:
        report.advance()
        report.show(1, loss=0.5)
    assert "ice_glyphs" in repr(boards)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("one line\n")
    assert "loss 0.5000" in said.err
