"""Arguments that change with the share of the iterations: their values, and what is refused."""

from __future__ import annotations

import pytest

from zoo.config import dump, load
from zoo.config.schedules import arguments_at
from zoo.config.schema import Config
from zoo.errors import UserError


def value(schedule, share):
    return arguments_at({"x": schedule}, share)["x"]


def test_a_jump():
    jump = {"from": 16, "to": 4, "at": 0.8}
    assert [value(jump, share) for share in (0, 0.5, 0.7999, 0.8, 1)] == [16, 16, 16, 4, 4]
    assert isinstance(value(jump, 0), int)
    assert value({"from": 1, "to": 2, "at": 0}, 0) == 2


def test_along_a_line():
    assert [value({"from": 2, "to": 4}, share) for share in (0, 0.25, 1)] == [2, 2.5, 4]
    late = {"from": 2, "to": 4, "since": 0.5, "until": 0.75}
    assert [value(late, share) for share in (0, 0.5, 0.625, 0.75, 1)] == [2, 2, 3, 4, 4]


def test_by_a_constant_factor():
    falling = {"from": 1000, "to": 10, "shape": "geometric"}
    assert value(falling, 0.5) == pytest.approx(100)
    negative = {"from": -1, "to": -4, "shape": "geometric"}
    assert value(negative, 0.5) == pytest.approx(-2)


def test_as_half_a_cosine():
    wave = {"from": 0.0, "to": 1.0, "shape": "cosine"}
    shares = (0, 1 / 3, 0.5, 2 / 3, 1)
    assert [value(wave, share) for share in shares] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_arguments_of_nested_components():
    nested = {
        "loss": {"name": "ice", "scale": {"from": 1, "to": 3}},
        "n": [1, {"from": 0, "to": 2}],
    }
    assert arguments_at(nested, 0.5) == {"loss": {"name": "ice", "scale": 2}, "n": [1, 1]}


def test_a_config_with_a_schedule_loads_as_it_was_saved(tmp_path):
    first = load("ice_glyphs", ["loss.scale={from: 16, to: 64, until: 0.5}"])
    (tmp_path / "again.yaml").write_text(dump(first))
    second = load(tmp_path / "again.yaml", [f"name={first.name}"])
    assert isinstance(second, Config)
    assert second == first
    assert first.digest() != load("ice_glyphs", ["loss.scale=16"]).digest()


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("{name: ice, scale: {from: 16, to: 64, at: 1.5}}", "loss.scale.at: must be at most 1"),
        ("{name: ice, scale: {from: 16, to: x}}", "loss.scale.to: must be a number, not 'x'"),
        (
            "{name: ice, scale: {from: 16, to: 64, shap: linear}}",
            "scale.shap: unknown key; did you",
        ),
        (
            "{name: ice, scale: {from: 16, to: 64, shape: bent}}",
            "must be one of linear, cosine, geo",
        ),
        ("{name: ice, scale: {from: 1, to: 2, at: 0.5, since: 0}}", "a jump (at) has no since"),
        ("{name: ice, scale: {from: 1, to: 2, since: 0.6, until: 0.5}}", "since must be less than"),
        (
            "{name: ice, scale: {from: -1, to: 2, shape: geometric}}",
            "needs two numbers of one sign",
        ),
        ("{name: ice, scale: {from: 1}}", "loss.scale: must be a number, not a map"),
        (
            "{name: ice, block: {from: 1, to: 4}}",
            "loss.block: must be a whole number or null, not 2.5",
        ),
        (
            "{name: ice, scael: {from: 1, to: 4}}",
            "scael: unknown argument of ice; did you mean scale",
        ),
        (
            "{name: ice, scale: {from: 1, to: 1e12}}",
            "must be 0 or a number of magnitude 1e-12 to 1e9",
        ),
        (
            "{name: ice, scale: {from: 1, to: 4, at: 1}}",
            "at 1 all iterations are done",
        ),
        ("{name: ice, reweight: {from: true, to: false}}", "loss.reweight.from: must be a number"),
    ],
)
def test_what_is_refused(loss, says):
    with pytest.raises(UserError) as error:
        load("ice_glyphs", [f"loss={loss}"])
    assert says in str(error.value)


def test_only_losses_and_miners_change():
    with pytest.raises(UserError, match=r"sampler\.classes=.*: must be a whole number, not a map"):
        load("ice_glyphs", ["sampler.classes={from: 8, to: 16}"])
