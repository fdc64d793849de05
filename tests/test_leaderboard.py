"""Run folders become tables."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from zoo import UserError, leaderboard


def result(config, recall, *, seed=0, digest="aa", dataset="glyphs", fingerprint="f0", paper=None):
    return {
        "run": f"{config}-{digest}-s{seed}",
        "config": config,
        "digest": digest,
        "seed": seed,
        "dataset": {"name": dataset, "fingerprint": fingerprint},
        "loss": "ice",
        "backbone": "convnet",
        "embedding_size": 64,
        "recall": {str(k): v for k, v in recall.items()},
        "seconds": {"training": 90.0, "evaluation": 1.0},
        "paper": paper,
    }


def write(folder, *results):
    for r in results:
        (folder / r["run"]).mkdir(parents=True)
        (folder / r["run"] / "result.json").write_text(json.dumps(r))


def text(board):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(leaderboard.to_table(board))
    return console.export_text()


def test_rows_are_sorted_and_seeds_are_averaged(tmp_path):
    write(
        tmp_path,
        result("low", {1: 0.5, 2: 0.6}),
        result("high", {1: 0.80, 2: 0.9}, seed=0),
        result("high", {1: 0.84, 2: 0.9}, seed=1),
        result("other", {1: 0.7, 8: 0.95}),
    )
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert [row.name for row in board.rows] == ["high", "other", "low"]
    assert board.ks == (1, 2, 8)
    assert str(board.rows[0].recall[1]) == "82.00 ± 2.83"
    assert len(board.rows[0].results) == 2
    lines = text(board).splitlines()
    assert re.search(r"high .* 2 .*82\.00 ± 2\.83 .*90\.00 ± 0\.00 .*– .*1\.5", "\n".join(lines))


def test_the_same_name_with_other_settings_is_another_row(tmp_path):
    write(tmp_path, result("a", {1: 0.5}, digest="aa"), result("a", {1: 0.6}, digest="bb"))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert len(board.rows) == 2


def test_other_data_is_another_board(tmp_path):
    write(
        tmp_path,
        result("a", {1: 0.5}),
        result("b", {1: 0.5}, fingerprint="f1"),
        result("c", {1: 0.5}, dataset="sop"),
    )
    titles = [board.title for board in leaderboard.boards(leaderboard.load(tmp_path))]
    assert titles == ["glyphs (f0)", "glyphs (f1)", "sop"]


def test_the_papers_value_and_the_difference(tmp_path):
    paper = {"table": "3", "row": "ice", "dataset": "sop", "recall": {"1": 77.3, "10": 90.0}}
    write(tmp_path, result("ice_sop", {1: 0.7712, 10: 0.91}, dataset="sop", paper=paper))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "77.3 (-0.18)" in text(board)
    assert "90.0 (+1.00)" in leaderboard.to_markdown(board)


def test_pooled_features_have_a_line_of_their_own(tmp_path):
    write(tmp_path, result("f", {1: 0.8}) | {"recall_of_features": {"1": 0.9, "2": 0.95}})
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "| pooled features |  |  |  |  | 90.00 |  |" in leaderboard.to_markdown(board)
    assert "pooled features" in text(board)


def test_a_value_that_the_paper_leaves_out(tmp_path):
    paper = {"recall": {"1": 73.7, "10": None}}
    write(tmp_path, result("p", {1: 0.7, 10: 0.8}, paper=paper))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "| 73.7 (-3.70) | – |" in leaderboard.to_markdown(board)


def test_markdown_shows_hostile_names_as_they_are(tmp_path):
    hostile = result("ok", {1: 0.5}, dataset="<script>|a_b & *x*")
    write(tmp_path, hostile)
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "&lt;script>\\|a\\_b &amp; \\*x\\*" in leaderboard.to_markdown(board)
    assert "<script>|a_b & *x*" in text(board)


def test_markup_in_names_is_text(tmp_path):
    write(tmp_path, result("[red]x", {1: 0.5}, dataset="[bold]d"))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "[red]x" in text(board)
    assert "[bold]d" in text(board)


def test_what_is_no_run_folder_is_said(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        leaderboard.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no finished run"):
        leaderboard.load(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="not the result of a run"):
        leaderboard.load(tmp_path)


def test_a_damaged_result_does_not_hide_the_good_ones(tmp_path):
    write(tmp_path, result("good", {1: 0.5}))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text("[1]")
    with pytest.warns(UserWarning, match="not the result of a run"):
        (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert [row.name for row in board.rows] == ["good"]
