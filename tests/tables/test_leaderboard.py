"""Run folders become tables."""

from __future__ import annotations

import re

import pytest
from boards import result, results_of, write_runs
from rich.console import Console

from zoo import UserError, leaderboard
from zoo.config import dump, load
from zoo.tables import listed
from zoo.tables.formats import terminal


def text(board, width=200):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(leaderboard.to_table(board, width))
    return console.export_text()


def markdown(results):
    return leaderboard.render(leaderboard.tables(results), "markdown")


def with_settings(config, *overrides, recall=0.5, seed=0):
    """Return a result of a shipped config, as a run leaves it."""
    (found,) = results_of(config, *overrides, recall={1: recall}, seed=seed)
    return found


def test_rows_are_sorted_and_seeds_are_averaged(tmp_path):
    write_runs(
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
    write_runs(
        tmp_path,
        with_settings("ice_glyphs", recall=0.5),
        with_settings("ice_glyphs", recall=0.6, seed=1),
        with_settings("ice_glyphs", "loss.scale=16", recall=0.7),
        with_settings("ice_glyphs", "train.iterations=300", "miner=semihard", recall=0.8),
    )
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert [(row.settings, len(row.results)) for row in board.rows] == [
        (("loss.scale=64", "miner=semihard", "train.iterations=300"), 1),
        (("loss.scale=16", "miner=null", "train.iterations=600"), 1),
        (("loss.scale=64", "miner=null", "train.iterations=600"), 2),
    ]
    shown = markdown(leaderboard.load(tmp_path))
    assert "| config | settings | loss |" in shown
    assert "| ice\\_glyphs | loss.scale=16 miner=null train.iterations=600 | ice |" in shown
    assert "loss.scale=16 miner=null train.iterations=600" in text(board)


def test_what_most_rows_share_is_below_the_table(tmp_path):
    names = ("ice_glyphs", "rll_glyphs", "lifted_struct_glyphs", "spectral_clust_glyphs")
    write_runs(tmp_path, *(with_settings(name) for name in names))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert board.shared == ("sampler.classes=32", "train.iterations=600")
    assert [row.settings for row in board.rows] == [
        *[()] * 3,
        ("sampler.classes=64", "train.iterations=300"),
    ]
    said = "Unless said otherwise: sampler.classes=32 train.iterations=600\n"
    assert text(board).endswith(said)
    assert markdown(leaderboard.load(tmp_path)).endswith("|\n\n" + said)


def test_old_results_are_told_apart_by_the_config_beside_them(tmp_path):
    """Those that neither have one show their digest."""
    runs = [with_settings("ice_glyphs", s) for s in ("loss.scale=64", "loss.scale=16")]
    for run in runs:
        del run["settings"]
    write_runs(tmp_path, *runs)
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    digests = {f"digest {run['digest']}" for run in runs}
    assert {setting for row in board.rows for setting in row.settings} == digests
    for run, scale in zip(runs, (64, 16), strict=True):
        checked = load("ice_glyphs", [f"loss.scale={scale}"])
        (tmp_path / run["run"] / "config.yaml").write_text(dump(checked))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert {row.settings for row in board.rows} == {("loss.scale=64",), ("loss.scale=16",)}
    (tmp_path / runs[0]["run"] / "config.yaml").write_text("kind: of another version")
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert len({row.settings for row in board.rows}) == 2


def test_the_row_of_a_run_stands_out(tmp_path):
    write_runs(tmp_path, with_settings("ice_glyphs"), with_settings("ice_glyphs", "loss.scale=16"))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    run = board.rows[1].results[0]["run"]
    console = Console(width=200, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(leaderboard.to_table(board, highlight=run))
    cyan = [line for line in captured.get().splitlines()[2:] if "\x1b[36m" in line]
    assert len(cyan) == 1
    assert board.rows[1].settings[0] in cyan[0]


def test_a_board_fits_into_80_columns(tmp_path):
    names = ("ice_glyphs", "triplet_semihard_glyphs", "spectral_clust_glyphs")
    runs = [with_settings(name, seed=seed) for name in names for seed in (0, 1)]
    scores = {str(k): 0.1234 for k in (1, 2, 4, 8)}
    write_runs(tmp_path, *(run | {"recall": scores} for run in runs))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    wide, narrow = text(board), text(board, 80)
    assert "12.34 ± 0.00" in wide
    rows = [line for line in narrow.splitlines() if "_glyphs" in line]
    assert sorted(row.split()[0].rstrip("¹²³") for row in rows) == sorted(names)
    assert all(row.endswith("  12.34 ± 0.00" * 4) for row in rows)
    assert "Not shown at a width of 80: loss, seeds, minutes" in narrow
    assert all(f"settings: {' '.join(row.settings)}" in narrow for row in board.rows)
    assert "…" not in wide + narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_all_settings_and_columns_are_shown_on_several_lines_if_that_is_asked_for(tmp_path):
    runs = [with_settings("triplet_semihard_glyphs", seed=seed) for seed in (0, 1)]
    runs.append(with_settings("ice_glyphs"))
    write_runs(
        tmp_path, *(run | {"recall": {str(k): 0.1234 for k in (1, 2, 4, 8)}} for run in runs)
    )
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(terminal.render(listed.table(board), 80, settings=True))
    shown = captured.get()
    assert re.search(r"12\.34 +12\.34 +12\.34 +12\.34", shown)
    assert re.search(r"± 0\.00 +± 0\.00", shown)
    assert "Not shown" not in shown
    assert all(f"\n  {setting}" in shown for row in board.rows for setting in row.settings)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("width", [1, 20, 40, 60, 90])
def test_with_all_settings_no_number_and_no_word_is_cut(tmp_path, width):
    name = "triplet_semihard_glyphs"
    runs = [
        with_settings(name, seed=seed) | {"loss": "a_loss.of_a_long_name_" * 2} for seed in (0, 1)
    ]
    runs += [with_settings("ice_glyphs", f"loss.scale={scale}") for scale in (16, 32)]
    scores = {str(k): 0.1234 for k in (1, 2, 4, 8)}
    write_runs(tmp_path, *(run | {"recall": scores} for run in runs))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    console = Console(width=width)
    with console.capture() as captured:
        shown = terminal.render(listed.table(board), width, settings=True)
        console.print(shown, crop=False)
    words = captured.get().split()
    heads = ["config", "loss", "seeds", "R@1", "R@2", "R@4", "R@8", "minutes"]
    if width < 90:
        heads = [f"{head}:" for head in heads]
        assert name in words
        assert "a_loss.of_a_long_name_" * 2 in words
    assert [word for word in heads if words.count(word) < 1] == []
    assert words.count("12.34") == 12
    assert {"loss.scale=16", "loss.scale=32"} <= set(words)
    assert "Not" not in words


@pytest.mark.parametrize("width", range(30, 140, 7))
def test_columns_go_before_a_name_or_a_number_is_cut(tmp_path, width):
    scores = {"recall": {str(k): 0.1234 for k in (1, 2, 4, 8)}}
    write_runs(tmp_path, *(with_settings("ice_glyphs", seed=seed) | scores for seed in (0, 1)))
    write_runs(tmp_path, with_settings("ice_glyphs", "loss.scale=16") | scores)
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    lines = text(board, width).splitlines()
    rows = [line for line in lines if line.startswith("ice_glyphs")]
    assert len(rows) == 2
    assert all("12.34" in row for row in rows)
    assert sum(row.count("12.34 ± 0.00") for row in rows) == sum(r.count("±") for r in rows)
    assert max(map(len, lines)) <= width


def test_other_data_is_another_board(tmp_path):
    write_runs(
        tmp_path,
        result("a", {1: 0.5}),
        result("b", {1: 0.5}, fingerprint="f1"),
        result("c", {1: 0.5}, dataset="sop"),
    )
    titles = [board.title for board in leaderboard.boards(leaderboard.load(tmp_path))]
    assert titles == ["glyphs (f0)", "glyphs (f1)", "sop"]


def test_a_folder_of_images_is_called_by_its_name(tmp_path):
    def run(name, folder, fingerprint, images):
        found = result(name, {1: 0.5}, dataset="image_folder", fingerprint=fingerprint)
        found["dataset"] |= {"folder": folder, "classes": 42, "images": images}
        return found

    copied = run("d", "flowers_2", "f1", 10)
    old = result("e", {1: 0.5}, dataset="image_folder", fingerprint="f1")
    write_runs(
        tmp_path,
        old,
        copied,
        run("a", "birds", "f0", 2474),
        run("b", "flowers", "f1", 10),
        run("c", "birds", "f2", 9),
    )
    found = leaderboard.boards(leaderboard.load(tmp_path))
    assert [(board.title, board.size) for board in found] == [
        ("birds (image_folder) (f0)", "42 classes, 2,474 images"),
        ("birds (image_folder) (f2)", "42 classes, 9 images"),
        ("flowers (image_folder)", "42 classes, 10 images"),
    ]
    assert [row.name for row in found[2].rows] == ["b", "d", "e"]
    heading = "flowers (image_folder): 42 classes, 10 images"
    assert text(found[2]).startswith(f"Recall@K in percent, {heading}; convnet, 64-d\n")
    third = leaderboard.render(leaderboard.tables(leaderboard.load(tmp_path))[2:], "markdown")
    assert third.startswith(f"### Recall@K in percent, {heading}; ".replace("_", "\\_"))


def test_networks_have_columns_where_they_differ(tmp_path):
    write_runs(tmp_path, result("a", {1: 0.5}), result("b", {1: 0.5}) | {"backbone": "other"})
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert text(board).startswith(
        "Recall@K in percent, glyphs; 64-d\nconfig  loss  backbone  seeds"
    )
    write_runs(tmp_path, result("c", {1: 0.5}) | {"embedding_size": 8})
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert text(board).startswith(
        "Recall@K in percent, glyphs\nconfig  loss  backbone  size  seeds"
    )


def test_the_papers_value_and_the_difference(tmp_path):
    paper = {"table": "3", "row": "ice", "dataset": "sop", "recall": {"1": 77.3, "10": 90.0}}
    write_runs(tmp_path, result("ice_sop", {1: 0.7712, 10: 0.91}, dataset="sop", paper=paper))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "77.3 (-0.18)" in text(board)
    assert "90.0 (+1.00)" in markdown(leaderboard.load(tmp_path))


def test_pooled_features_have_a_line_of_their_own(tmp_path):
    write_runs(tmp_path, result("f", {1: 0.8}) | {"recall_of_features": {"1": 0.9, "2": 0.95}})
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "| pooled features |  |  | 90.00 |  |" in markdown(leaderboard.load(tmp_path))
    assert "pooled features" in text(board)


def test_a_value_that_the_paper_leaves_out(tmp_path):
    paper = {"recall": {"1": 73.7, "10": None}}
    write_runs(tmp_path, result("p", {1: 0.7, 10: 0.8}, paper=paper))
    assert "| 73.7 (-3.70) | – |" in markdown(leaderboard.load(tmp_path))


def test_markdown_shows_hostile_names_as_they_are(tmp_path):
    hostile = result("ok", {1: 0.5}, dataset="<script>|a_b & *x*")
    write_runs(tmp_path, hostile)
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "&lt;script>\\|a\\_b &amp; \\*x\\*" in markdown(leaderboard.load(tmp_path))
    assert "<script>|a_b & *x*" in text(board)


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    hostile = result("x", {1: 0.5}, dataset="\x1b[2Jd") | {"loss": "\x1b[31mred\n"}
    hostile["settings"] = {"\x1b]0;title\x07": 1}
    other = result("y", {1: 0.5}, dataset="\x1b[2Jd") | {"settings": {"\x1b]0;title\x07": 2}}
    write_runs(tmp_path, hostile, other)
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f]", markdown(leaderboard.load(tmp_path)) + text(board)
    )
    assert r"\x1b[31mred\n" in text(board)


def test_markup_in_names_is_text(tmp_path):
    write_runs(tmp_path, result("[red]x", {1: 0.5}, dataset="[bold]d"))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert "[red]x" in text(board)
    assert "[bold]d" in text(board)


def test_what_is_no_run_folder_is_said(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: there is no such folder; .* zoo run ice_glyphs"):
        leaderboard.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no finished run in it; .* zoo run ice_glyphs"):
        leaderboard.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: is not a folder"):
        leaderboard.load(tmp_path / "file")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="no finished run in it, but 1 unfinished: begun; repeat"):
        leaderboard.load(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="not the result of a run"):
        leaderboard.load(tmp_path)


def test_a_damaged_result_does_not_hide_the_good_ones(tmp_path):
    write_runs(tmp_path, result("good", {1: 0.5}))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text("[1]")
    with pytest.warns(UserWarning, match="not the result of a run"):
        (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert [row.name for row in board.rows] == ["good"]


def held_back(result, iteration=400, iterate="best", selection=None):
    validation = {"share": 0.2, "recall": {"1": 0.5}}
    more = {"iterate": iterate, "iteration": iteration, "selection": selection}
    return result | {"validation": validation} | more


AMONG = {"loss.scale": ["1", "16", "64"]}
SELECTION = {"settings": {"loss.scale": "64"}, "among": AMONG}


def test_what_was_chosen_on_held_out_classes_says_so(tmp_path):
    write_runs(
        tmp_path,
        result("plain", {1: 0.5}),
        held_back(result("scale", {1: 0.9}), 400, selection=SELECTION),
        held_back(result("scale", {1: 0.9}, seed=1), 350, selection=SELECTION),
        held_back(result("iterate", {1: 0.8}), 100),
        held_back(result("alike", {1: 0.7}), 100),
        held_back(result("last", {1: 0.6}), 600, "last"),
        held_back(result("last_of_scales", {1: 0.4}), 600, "last", SELECTION),
    )
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    share = "20 % of the training classes"
    notes = [
        f"¹ chosen on {share}: iterations 400, 350; loss.scale=64 of 1, 16, 64",
        f"² chosen on {share}: iteration 100",
        f"³ trained without {share}; nothing was chosen on them",
        f"⁴ chosen on {share}: loss.scale=64 of 1, 16, 64",
    ]
    names = ["scale¹", "iterate²", "alike²", "last³", "plain", "last_of_scales⁴"]
    lines = text(board).splitlines()
    assert [line.split()[0] for line in lines[2:8]] == names
    assert [line.strip() for line in lines[9:]] == notes
    shown = markdown(leaderboard.load(tmp_path))
    for name, note in zip(names, [*notes, *["| ice |"] * 2], strict=True):
        assert name.replace("_", "\\_") in shown
        assert note.replace("_", "\\_") in shown


def test_chosen_runs_and_others_are_never_one_row(tmp_path):
    write_runs(
        tmp_path,
        held_back(result("a", {1: 0.5}), selection=SELECTION),
        held_back(result("a", {1: 0.6}, seed=1)),
        held_back(result("a", {1: 0.7}, seed=2), selection=SELECTION | {"among": {"x": ["1"]}}),
        held_back(result("a", {1: 0.8}, seed=3), selection=SELECTION),
    )
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    seeds = [[r["seed"] for r in row.results] for row in board.rows]
    assert seeds == [[2], [0, 3], [1]]
    assert not any("digest" in line for line in text(board).splitlines())


def test_a_hostile_choice_is_shown_as_it_is(tmp_path):
    hostile = {"settings": {"<b>": "[red]\x1b"}, "among": {"<b>": ["*a*", "|"]}}
    write_runs(tmp_path, held_back(result("a", {1: 0.5}), selection=hostile))
    (board,) = leaderboard.boards(leaderboard.load(tmp_path))
    assert r"&lt;b>=\[red\]\\x1b of \*a\*, \|" in markdown(leaderboard.load(tmp_path))
    assert "<b>=[red]\\x1b of *a*, |" in text(board)


@pytest.mark.parametrize("more", [{"validation": {"share": 2}}, {"selection": {"among": 3}}])
def test_a_damaged_choice_is_no_result(tmp_path, more):
    write_runs(tmp_path, held_back(result("a", {1: 0.5})) | more)
    with pytest.raises(UserError, match="not the result of a run"):
        leaderboard.load(tmp_path)
