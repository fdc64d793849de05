"""What is suggested where a name is wrong."""

from __future__ import annotations

import pytest

from zoo import UserError, registry
from zoo.checks import CHECKS
from zoo.errors import did_you_mean
from zoo.support.near import near

LOSSES = [*registry.names("losses"), *registry.pml_names("losses")]
KEYS = ["name", "dataset", "images", "model", "loss", "miner", "sampler", "schedule", "train"]
CASES = [
    ("triplet", LOSSES, ["triplet_semihard", "pml.TripletMarginLoss", "soft_triple"]),
    ("Triplet", LOSSES, ["triplet_semihard", "pml.TripletMarginLoss", "soft_triple"]),
    ("pml.TripletLoss", LOSSES, ["pml.TripletMarginLoss", "pml.SoftTripleLoss"]),
    ("TripletMarginLoss", LOSSES, ["pml.TripletMarginLoss"]),
    ("contrastiveloss", LOSSES, ["contrastive", "pml.ContrastiveLoss"]),
    ("proxy-nca", LOSSES, ["proxy_nca", "pml.ProxyNCALoss"]),
    ("semihard", LOSSES, ["triplet_semihard"]),
    ("arc", LOSSES, ["arcface", "pml.ArcFaceLoss"]),
    ("multisim", LOSSES, ["multi_similarity", "pml.MultiSimilarityLoss"]),
    ("ICE", LOSSES, ["ice"]),
    ("icee", LOSSES, ["ice"]),
    ("pml.NTXnetLoss", LOSSES, ["pml.NTXentLoss"]),
    ("rotation", [check.__name__ for check in CHECKS], ["check_rotation"]),
    ("scael", ["scale", "block"], ["scale"]),
    ("sdg", ["sgd", "adam", "adamw"], ["sgd"]),
    ("losss", KEYS, ["loss"]),
    ("data", KEYS, ["dataset"]),
]


@pytest.mark.parametrize(("wrong", "known", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_near_names(wrong, known, wanted):
    found = near(wrong, known)
    assert len(found) <= 3
    assert set(wanted) <= set(found)


@pytest.mark.parametrize("wrong", ["scale", "lr", "iterations", "", "qqqqqqq", "-", "x" * 10**5])
def test_nothing_is_suggested_that_is_not_near(wrong):
    assert near(wrong, KEYS) == []
    assert did_you_mean(wrong, KEYS) == ""


def test_names_are_joined():
    assert did_you_mean("icee", ["ice", "rll"]) == "; did you mean ice?"
    assert did_you_mean("a_x", ["a_xy", "a_xz"]) == "; did you mean a_xy or a_xz?"
    assert did_you_mean("ab", ["ab1", "ab2", "ab3"]) == "; did you mean ab1, ab2 or ab3?"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("losses", "semihard", "named 'semihard', but a miner; did you mean triplet_semihard?"),
        ("miners", "ice", "no miner named 'ice', but a loss; `zoo list miners` shows"),
        (
            "losses",
            "mine:Loss",
            "give the class a name: an entry point of its package in",
        ),
        ("samplers", "angular", "no sampler named 'angular', but a loss or miner; "),
        ("backbones", "mobilenet_v2", "; did you mean torchvision.mobilenet_v2?"),
        ("backbones", "torchvision.resnet5", "; did you mean torchvision.resnet50"),
        ("backbones", "convnett", "; did you mean convnet or sphere_convnet?"),
    ],
)
def test_other_kinds_and_members_of_families(kind, name, message):
    with pytest.raises(UserError) as error:
        registry.component(kind, name) if "." not in name else registry.describe(kind, name)
    assert message in str(error.value)
