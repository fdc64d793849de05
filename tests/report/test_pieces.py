"""What a report is made of: neighbours, galleries, maps, sweeps, charts, its folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import report_runs

from zoo import UserError
from zoo.evaluate import NO_MATCH
from zoo.evaluation.spaces import compared
from zoo.report import charts, collect, gallery, sweeps, tables, tsne
from zoo.report.neighbours import nearest
from zoo.report.output import MANIFEST, Output


def test_the_nearest_are_those_of_a_loop():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 5)).astype(np.float32)
    labels = np.arange(40) // 4
    found = nearest(compared(vectors, None), labels, np.arange(40))
    for q in range(40):
        cosine = {
            i: vectors[q] @ vectors[i] / np.linalg.norm(vectors[q]) / np.linalg.norm(vectors[i])
            for i in range(40)
            if i != q
        }
        assert found.indices[q].tolist() == sorted(cosine, key=cosine.get, reverse=True)[:10]
        assert found.cosines[q] == pytest.approx([cosine[i] for i in found.indices[q]], abs=1e-6)


def test_the_query_is_left_out_by_its_index_and_ties_count_against_it():
    vectors = np.ones((4, 3), np.float32)  # all the same: another class comes first
    found = nearest(compared(vectors, None), np.array([0, 0, 1, 1]), np.array([0, 3]))
    assert found.indices.tolist() == [[2, 3, 1], [0, 1, 2]]


def test_a_vector_of_zeros_has_neighbours_too():
    vectors = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    assert np.isfinite(nearest(compared(vectors, None), np.arange(3), np.arange(3)).cosines).all()


def test_the_hardest_failures_come_first_then_right_ones():
    ranks = np.array([1, 5, 2, NO_MATCH, 1, 9, 1, 1, 3], np.int32)
    assert gallery.choose(ranks, 4).tolist() == [5, 1, 8, 0]
    assert gallery.choose(ranks, 8).tolist() == [5, 1, 8, 2, 0, 4, 6, 7]
    assert gallery.choose(ranks, 0).tolist() == []
    assert gallery.choose(np.ones(5, np.int32), 3).tolist() == [0, 2, 4]
    assert gallery.choose(np.full(5, 2, np.int32), 3).tolist() == [0, 1, 2]


def test_the_first_right_image_is_shown_where_it_comes_late():
    angles = np.array([0, 90, 60, 70, *range(1, 12), 80], np.float32) * np.pi / 180
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    labels = np.array([0, 0, 0, 0, *[1] * 11, 2])
    ranks = np.array([12, 3, 2, 2, *[1] * 11, NO_MATCH], np.int32)
    late, *others = gallery.gallery(vectors, labels, ranks, 15)
    assert (late.image, late.rank, len(late.found)) == (0, 12, 10)
    assert not any(shown.right for shown in late.found)
    assert late.later == (2, 0, True, pytest.approx(0.5, abs=1e-6))
    assert [query.later for query in others] == [None] * len(others)
    assert 2 in gallery.images([late])


def test_a_sample_has_of_each_class_about_the_same_share():
    labels = np.repeat([0, 1, 2], [10, 100, 1000])
    counts = np.bincount(labels[tsne.sample(labels, 111)])
    assert counts.tolist() == pytest.approx([1, 10, 100], abs=1)
    assert tsne.sample(labels, 5000).tolist() == list(range(1110))
    assert (tsne.sample(labels, 111) == tsne.sample(labels, 111)).all()


def test_a_map_is_the_same_at_every_call_and_keeps_groups_apart():
    random = np.random.default_rng(0)
    vectors = np.repeat(np.eye(3, 8), 20, 0) + 0.05 * random.normal(size=(60, 8))
    places = tsne.project(vectors.astype(np.float32))
    assert (places == tsne.project(vectors.astype(np.float32))).all()
    groups = places.reshape(3, 20, 2)
    inside = np.linalg.norm(groups - groups.mean(1, keepdims=True), axis=2).max()
    between = np.linalg.norm(groups.mean(1)[[0, 1, 2]] - groups.mean(1)[[1, 2, 0]], axis=1).min()
    assert inside < between


def test_there_is_no_map_of_what_has_collapsed_or_is_too_little():
    with pytest.raises(UserError, match="are the same"):
        tsne.project(np.ones((20, 4), np.float32))
    with pytest.raises(UserError, match="only 3 images"):
        tsne.project(np.eye(3, dtype=np.float32))


def test_pictures_do_not_cover_each_other():
    places = np.random.default_rng(0).random((300, 2)).astype(np.float32)
    chosen = places[tsne.with_room(places, 0.1)] / np.ptp(places, axis=0)
    far = np.abs(chosen[:, None] - chosen[None]).max(2) + np.eye(len(chosen))
    assert far.min() >= 0.1 - 1e-6
    assert len(chosen) > 20


def boards(tmp_path, *runs):
    for overrides, recall, more in runs:
        report_runs.made_up(tmp_path, "ice_glyphs", *overrides, recall=recall, **more)
    (board,) = collect.boards(collect.collect(tmp_path))
    return board


def test_a_sweep_of_one_number_is_found_with_its_seeds_and_the_papers_values(tmp_path):
    paper = {"recall": {"1": 61.0}}
    board = boards(
        tmp_path,
        (["loss.scale=16"], 0.5, {"paper": paper}),
        (["loss.scale=16"], 0.6, {"seed": 1, "paper": paper}),
        (["loss.scale=1"], 0.4, {}),
        (["loss.scale=64", "train.iterations=7"], 0.9, {}),  # differs in two
    )
    (found,) = sweeps.find(board.rows)
    assert (found.setting, found.title, found.k) == ("loss.scale", "scale", 1)
    (one,) = found.series
    assert [(p.x, p.text, round(p.recall.mean), p.paper) for p in one.points] == [
        (1, "1", 40, None),
        (16, "16", 55, 61.0),
    ]
    figure = charts.sweep(found)
    assert figure["data"][0]["error_y"]["array"][1] == pytest.approx(7.07, abs=0.01)
    assert figure["data"][1]["name"] == "ice_glyphs, paper"
    assert figure["layout"]["xaxis"]["tickvals"] == [1, 16]


def test_an_axis_is_that_on_which_values_stand_apart():
    assert charts.by_ratio([16, 32, 64, 128])
    assert charts.by_ratio([1e-4, 1e-3, 1e-2])
    assert not charts.by_ratio([1, 16, 32, 48, 64, 80])
    assert not charts.by_ratio([0, 1, 10, 100])


def test_batch_content_and_batch_size_are_sweeps(tmp_path):
    content = [(64, 2), (32, 4), (16, 8)]
    runs = [([f"sampler.classes={p}", f"sampler.per_class={k}"], 0.5, {}) for p, k in content]
    board = boards(tmp_path, *runs, (["sampler.classes=8"], 0.6, {}))
    found = {sweep.title: sweep for sweep in sweeps.find(board.rows)}
    words = found["batch content, classes × images of each"]
    assert [point.text for point in words.series[0].points] == ["16 × 8", "32 × 4", "64 × 2"]
    assert charts.sweep(words)["layout"]["xaxis"] == {
        "title": {"text": words.title},
        "type": "category",
    }
    assert [point.x for point in found["batch size"].series[0].points] == [32, 128]
    assert len(found) == 2


def test_a_grid_has_a_line_for_each_value_of_the_other_setting(tmp_path):
    grid = [(scale, size) for scale in (1, 64) for size in (16, 128)]
    runs = [([f"loss.scale={x}", f"model.embedding_size={d}"], 0.5, {}) for x, d in grid]
    scale, size = sweeps.find(boards(tmp_path, *runs).rows)
    assert [one.name for one in scale.series] == [
        "ice_glyphs model.embedding_size=128",
        "ice_glyphs model.embedding_size=16",
    ]
    assert size.title == "embedding size"


def test_what_is_no_number_is_not_drawn():
    bad = [{"iteration": n, "loss": x} for n, x in enumerate([1, float("nan"), "2", True, 1e999])]
    assert charts.logged(bad, "loss") == [(0, 1)]
    assert charts.loss_curve([{"iteration": 1, "loss": None}]) is None
    assert charts.recall_curve([{"iteration": 1, "recall": {"x": 1, "1": "a"}}]) is None
    json.dumps(charts.loss_curve(bad), allow_nan=False)


def test_names_are_text_for_plotly():
    figure = charts.loss_curve(
        [{"iteration": 1, "loss": 1}], {"<b>": [{"iteration": 1, "loss": 2}]}
    )
    assert figure["data"][1]["name"] == "&lt;b&gt;"


def test_recall_by_k_is_that_of_the_ranks():
    figure = charts.recall_by_k(np.array([1, 3, 1, 2, NO_MATCH], np.int32))
    assert figure["data"][0]["y"] == [40, 60, 80, 80, 80]


def test_the_best_of_a_column_is_marked(tmp_path):
    board = boards(tmp_path, ([], 0.5, {"paper": {"recall": {"1": 48.0}}}), ([], 0.5, {"seed": 1}))
    (line,) = tables.table(board).lines
    assert [cell.best for cell in line.recall] == [True, True]
    assert [cell.text for cell in line.paper] == ["48.0 (+2.00)", "–"]


def test_what_is_not_comparable_is_marked_and_never_the_best(tmp_path):
    other = ["model.backbone.width=32"]
    board = boards(tmp_path, ([], 0.5, {}), (["loss.scale=2"], 0.4, {}), (other, 0.9, {}))
    found = tables.table(board)
    assert [line.notes for line in found.lines] == [[1], [], []]
    assert "not comparable with the others: model.backbone.width=32" in found.notes[0]
    assert [line.recall[0].best for line in found.lines] == [False, True, False]


def test_a_report_replaces_what_is_its_own_and_nothing_else(tmp_path):
    first = Output(tmp_path / "site")
    first.write("runs/old.html", b"1")
    first.write("index.html", b"1")
    first.finish()
    (tmp_path / "site" / "runs" / "mine.txt").write_text("mine")
    again = Output(tmp_path / "site")
    again.write("index.html", b"2")
    again.finish()
    files = sorted(p.name for p in (tmp_path / "site").rglob("*") if p.is_file())
    assert files == ["index.html", "mine.txt", MANIFEST]
    assert (tmp_path / "site" / "index.html").read_bytes() == b"2"


def test_an_emptied_folder_goes(tmp_path):
    Output(tmp_path / "site").write("a/b/c.html", b"1")
    Output(tmp_path / "site").finish()
    assert [p.name for p in (tmp_path / "site").iterdir()] == [MANIFEST]


def test_a_report_that_was_cut_short_is_replaced(tmp_path):
    Output(tmp_path).write("runs/a.html", b"1")  # never finished
    again = Output(tmp_path)
    again.write("runs/a.html", b"2")
    again.finish()
    assert (tmp_path / "runs" / "a.html").read_bytes() == b"2"


def test_what_a_killed_report_was_writing_is_removed(tmp_path):
    left = f".{'0' * 32}.tmp"
    (tmp_path / left).touch()
    Output(tmp_path).write("runs/a.html", b"1")
    for folder in (tmp_path, tmp_path / "runs"):
        (folder / left).touch()
        (folder / ".mine.tmp").touch()
    Output(tmp_path).finish()
    left_now = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.tmp")]
    assert sorted(left_now) == [".mine.tmp", "runs/.mine.tmp"]


def test_somebody_elses_file_is_not_written_over(tmp_path):
    Output(tmp_path).finish()
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(UserError, match="not of the report, but in its way"):
        Output(tmp_path).claim(["index.html"])
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.parametrize("content", [None, "{", "[]", '{"made_by": "x", "files": []}'])
def test_a_folder_that_is_no_report_is_refused(tmp_path, content):
    (tmp_path / "file").write_text("x")
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match="give an empty or a new folder"):
        Output(tmp_path)


def test_a_manifest_that_was_changed_cannot_remove_what_is_elsewhere(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("x")
    site = tmp_path / "site"
    Output(site).finish()
    manifest = json.loads((site / MANIFEST).read_text())
    manifest["files"] = ["../outside", str(outside), "a\0b", 3, "x/../../outside"]
    (site / MANIFEST).write_text(json.dumps(manifest))
    Output(site).finish()
    assert outside.exists()


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "site").write_text("x")
    with pytest.raises(UserError):
        Output(tmp_path / "site")
