"""Settings are told apart where names do not do it."""

from __future__ import annotations

import pytest

from zoo import config
from zoo.tables.differences import find


def of(name="ice_glyphs", *overrides):
    return config.load(name, overrides).settings()


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        (["loss.scale=16"], [["loss.scale=64"], ["loss.scale=16"]]),
        (["train.iterations=300"], [["train.iterations=600"], ["train.iterations=300"]]),
        (["miner=semihard"], [["miner=null"], ["miner=semihard"]]),
        (
            ["sampler={name: shuffle, batch_size: 9}"],
            [["sampler=m_per_class"], ["sampler=shuffle"]],
        ),
        (["optimizer.lr=1e-5"], [["optimizer.lr=0.001"], ["optimizer.lr=1e-05"]]),
        (["images.crop=28"], [["images.crop=null"], ["images.crop=28"]]),
        (["loss.block=64"], [[], ["loss.block=64"]]),
        (["evaluate.ks=[1, 5]"], [["evaluate.ks=[1, 2, 4, 8]"], ["evaluate.ks=[1, 5]"]]),
        (
            ["model.backbone.width=4", "seed=3", "name=x"],
            [["model.backbone.width=16"], ["model.backbone.width=4"]],
        ),
    ],
    ids=str,
)
def test_what_differs_is_shown_as_the_command_line_has_it(overrides, shown):
    assert find([of(), of("ice_glyphs", *overrides)]).own == shown
    assert find([of(), of("ice_glyphs", *overrides)]).shared == []


def test_what_is_alike_or_has_a_column_is_not_shown():
    others = of("rll_glyphs"), of("ice_glyphs", "model.embedding_size=16"), of("rll_glyphs")
    assert find([of(), *others]).own == [[], [], [], []]


def test_what_most_have_is_told_once():
    rows = [of(), of(), of("rll_glyphs"), of("ice_glyphs", "train.iterations=300")]
    found = find(rows)
    assert found.own == [[], [], [], ["train.iterations=300"]]
    assert found.shared == ["train.iterations=600"]


def test_arguments_are_compared_within_one_component():
    """A scale of one loss is not that of another, and which it is must be clear from the row."""
    rows = [of("rll_glyphs"), of("rll_glyphs"), of("rll_glyphs"), of("cce_glyphs"), of()]
    rows += [of("ice_glyphs", "loss.scale=16")]
    found = find(rows)
    assert [[s for s in own if s.startswith("loss")] for own in found.own] == [
        *[[]] * 4,
        ["loss.scale=64"],
        ["loss.scale=16"],
    ]
    assert not any(text.startswith("loss.") for text in found.shared)


def test_components_within_components():
    distance = "loss={{name: pml.TripletMarginLoss, distance: {{name: pml.{}}}}}"
    names = ("LpDistance", "SNRDistance")
    found = find([of("ice_glyphs", distance.format(name)) for name in names])
    assert found.own == [[f"loss.distance=pml.{name}"] for name in names]


def test_training_that_did_not_take_place_has_no_settings():
    without = of("ice_glyphs", "train.iterations=0", "sampler.classes=8", "train.clip_norm=1.0")
    assert find([of(), without]).own == [["train.iterations=600"], ["train.iterations=0"]]


def test_unknown_settings_are_compared_with_none():
    assert find([None, of(), {}]).own == [[], [], []]
    assert find([None, of(), of("ice_glyphs", "loss.scale=1")]).own == [
        ["not recorded"],
        ["loss.scale=64"],
        ["loss.scale=1"],
    ]
    assert find([]) == ([], [])


def test_where_a_file_lies_is_no_difference():
    here = {"dataset": {"name": "image_folder", "root": "../birds"}, "seed": 1}
    there = {"dataset": {"name": "image_folder", "root": "/data/birds"}, "seed": 1}
    other = {"dataset": {"name": "image_folder", "root": "/data/cats"}, "seed": 1}
    assert find([here, there]).own == [[], []]
    assert find([here, other]).own == [["dataset.root=birds"], ["dataset.root=cats"]]
