"""The JSON schema for editors: it admits what the zoo admits, and knows what a slip is."""

from __future__ import annotations

import json
import subprocess
import sys

import commands
import pytest
from places import ROOT

import zoo
from zoo.registry import components

CONFIGS = ROOT / "configs"
jsonschema = pytest.importorskip("jsonschema")

# A number of a loss, or a schedule of it.
NUMBER = [{"type": "number"}, {"$ref": "#/$defs/ArgumentSchedule"}]


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((CONFIGS / "schema.json").read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def errors(validator, text):
    from zoo.support import yaml

    tree = yaml.parse(text, "x.yaml", [])
    return list(validator.iter_errors(json.loads(json.dumps(tree.plain()))))


@pytest.mark.parametrize(
    "path",
    sorted(p for p in CONFIGS.rglob("*.yaml") if p.parent.name != "tables"),
    ids=lambda p: p.relative_to(CONFIGS).as_posix(),
)
def test_every_shipped_config_is_as_it_says(validator, path):
    assert not errors(validator, path.read_text("utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "loss: ice",
        "loss: {scale: 32}",
        "loss: {name: pml.MultiSimilarityLoss, alpha: 3}",
        "loss: null",
        "model: {backbone: torchvision.resnet50}",
        "model: {backbone: {name: timm.resnet10t, weights: null}}",
        "optimizer: {lr: 1e-3}",
        "schedule: cosine",
        "sweep: {loss.scale: [16, 64]}\nseeds: [0, 1]",
        "sweep: [{loss.scale: 16}]",
        "extends: [a.yaml, b.yaml]",
        "evaluate: {ks: [1, 10]}",
    ],
)
def test_what_a_file_may_say(validator, text):
    assert not errors(validator, text)


@pytest.mark.parametrize(
    "text",
    [
        "loss: icce",
        "loss: {name: ice, scael: 32}",
        "loss: {name: ice, scale: many}",
        "train: {iteratons: 3}",
        "train: {iterations: -3}",
        "model: {backbone: {name: torchvision.resnet50, weigths: null}}",
        "optimizer: adamm",
        "optimizer: {name: sgd, betas: [0.9, 0.99]}",
        "dataset: {name: glyphs, split: test}",
        "extends: 3",
        "device: gpu",
    ],
)
def test_what_is_a_slip(validator, text):
    assert errors(validator, text)


def test_an_argument_has_its_type_its_default_and_what_the_class_says_of_it(validator):
    rules = validator.schema["$defs"]["losses"]["anyOf"][1]["allOf"]
    (rule,) = [r["then"] for r in rules if r["if"]["properties"]["name"] == {"const": "ice"}]
    scale = rule["properties"]["scale"]
    assert scale.pop("description")
    assert scale == {"anyOf": NUMBER, "default": 64.0}


def test_the_command_knows_what_is_registered(command, monkeypatch):
    monkeypatch.setattr(components, "_registered", {})

    @zoo.register("losses", "mine")
    class Mine:
        """One.

        Args:
            strength: how much.
        """

        def __init__(self, strength: float = 2.0) -> None: ...

    status, out, _ = command("config", "--schema")
    assert status == 0
    losses = json.loads(out)["$defs"]["losses"]
    assert "mine" in losses["anyOf"][0]["anyOf"][0]["enum"]
    (rule,) = [
        r for r in losses["anyOf"][1]["allOf"] if r["if"]["properties"]["name"] == {"const": "mine"}
    ]
    strength = rule["then"]["properties"]["strength"]
    assert strength == {"description": "how much.", "anyOf": NUMBER, "default": 2.0}


@pytest.mark.slow
@commands.with_recent_pydantic
def test_the_shipped_schema_is_made_from_the_classes():
    tool = [sys.executable, str(ROOT / "tools" / "make_schema.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
