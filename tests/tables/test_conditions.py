"""Runs that are not comparable are marked, and what differs is said."""

from __future__ import annotations

import pytest
from boards import result, results_of

from zoo import leaderboard
from zoo.tables import conditions


def notes(*results, **more):
    return conditions.notes(results, **more)


def one(*overrides, name="ice_glyphs"):
    (found,) = results_of(name, *overrides, recall={1: 0.5})
    return found


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.backbone.width=4"], "model.backbone.width=4 instead of 16"),
        (["model.backbone=bn_inception"], "model.backbone=bn_inception instead of convnet"),
        (["model.embedding_size=64"], "model.embedding_size=64 instead of 128"),
        (["model.space=euclidean"], "model.space=euclidean instead of null"),
        (["model.pooling=max"], "model.pooling=max instead of avg"),
        (["images.crop=28"], "images.crop=28 instead of null"),
        (["images.mirror=true"], "images.mirror=true instead of false"),
    ],
    ids=str,
)
def test_what_differs_from_most_is_said(overrides, said):
    found = notes(one(), one(), one(*overrides))
    assert found == [None, None, f"not comparable with the others: {said}"]


@pytest.mark.parametrize(
    "override",
    [
        "loss.scale=16",
        "model.slices=[64, 64]",
        "train.iterations=3",
        "sampler.classes=8",
        "optimizer.lr=0.1",
        "evaluate.ks=[1]",
        "evaluate.features=true",
        "evaluate.validation=0.2",  # which has a note of its own
    ],
)
def test_how_it_was_trained_and_what_is_reported_may_differ(override):
    assert notes(one(), one(override)) == [None, None]


def test_other_images_are_another_condition():
    other = one() | {"dataset": {"name": "glyphs", "fingerprint": "f1"}}
    assert notes(one(), one(), other)[2].endswith("others: dataset.fingerprint=f1 instead of f0")


def test_of_as_many_the_first_count():
    first, second = one(), one("model.embedding_size=64")
    assert notes(first, second)[0] is None
    assert notes(second, first)[0] is None
    assert notes(second, first, first)[0] is not None


def test_preparation_in_training_is_none_of_a_network_as_it_is():
    as_it_is = one("train.iterations=0", "loss=null", "images.mirror=true", "model.freeze=trunk")
    assert notes(as_it_is, one("train.iterations=0", "loss=null")) == [None, None]
    assert notes(one(), as_it_is) == [None, None]


def test_a_file_of_weights_may_lie_elsewhere():
    here, there, other = (
        one("model.backbone=bn_inception", f"model.backbone.weights={path}")
        for path in ("/a/w.pth", "../b/w.pth", "/a/v.pth")
    )
    assert notes(here, there, other) == [
        None,
        None,
        "not comparable with the others: model.backbone.weights=v.pth instead of w.pth",
    ]


def test_settings_that_are_not_recorded_are_said():
    old = result("old", {1: 0.5}) | {"embedding_size": 128}
    may_not = "may not be comparable with the others"
    assert notes(old, one(), one())[0] == f"{may_not}: its settings are not recorded"
    assert notes(old, old, one())[2] == f"{may_not}, whose settings are not recorded"
    assert notes(old, old) == notes(old, old, one())[:2] == [None, None]
    assert notes(old | {"embedding_size": 8}, one())[1].endswith("embedding_size=128 instead of 8")


def test_what_a_table_is_about_may_differ():
    varied = ["model.embedding_size"]
    assert notes(one(), one("model.embedding_size=64"), varied=varied) == [None, None]
    assert notes() == []


def test_only_comparable_rows_can_be_the_best():
    runs = [
        result("small", {1: 0.9}) | {"embedding_size": 8},
        result("a", {1: 0.7}),
        result("b", {1: 0.8, 2: 0.9}),
        result("c", {1: 0.8, 2: 0.85}),
    ]
    (table,) = leaderboard.tables(runs)
    best = {line.title: line.entries[0].best for line in table.lines}
    assert best == {"small": frozenset(), "b": {1, 2}, "c": {1}, "a": frozenset()}
    assert table.remarks == ("Bold: the best of the rows that are comparable",)


def test_a_single_row_is_not_the_best_of_anything():
    (table,) = leaderboard.tables([result("a", {1: 0.7})])
    assert table.lines[0].entries[0].best == frozenset()


def test_a_run_that_is_not_measured_as_the_paper_is_marked():
    (run,) = results_of("ice_sop", "images.crop=224", "model.backbone=convnet")
    (table,) = leaderboard.tables([run])
    assert table.notes == [
        "not measured as the paper's values: model.backbone=convnet instead of bn_inception, "
        "images.crop=224 instead of 227"
    ]
    assert leaderboard.tables(results_of("ice_sop"))[0].notes == []


def test_hostile_settings_do_no_harm():
    hostile = one() | {"settings": {"model": 3, "images": [], "loss": {"name": 1}}}
    assert notes(one(), one(), hostile)[2] is not None
    assert conditions.value(hostile, "model.backbone.levels") is None
    assert conditions.value(hostile, "sampler.classes") is None
