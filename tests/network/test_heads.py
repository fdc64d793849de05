"""The layers of the embedding: what each choice computes, and what a config may ask for."""

from __future__ import annotations

import commands
import pytest
import torch
import torch.nn.functional as F
from places import ROOT
from torch import nn

from zoo import UserError
from zoo.config import load
from zoo.network.heads import head
from zoo.training.experiment import build_embedder

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def normalised(x):
    mean, variance = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


def test_by_default_it_is_one_linear_layer():
    layer = head(8, 5)
    assert isinstance(layer, nn.Linear)
    assert isinstance(head(8, None), nn.Identity)


def test_a_hidden_layer_has_a_relu():
    layers = head(8, 5, hidden=7)
    first, _, last = layers
    assert torch.allclose(layers(X), last(F.relu(first(X))))
    assert (first.out_features, last.in_features) == (7, 7)


@pytest.mark.parametrize("size", [5, None])
def test_a_norm_has_no_weights(size):
    before, after = head(8, size, norm="features"), head(8, size, norm="embedding")
    for layers in (before, after):
        assert sum(p.numel() for p in layers.parameters()) == (0 if size is None else 8 * 5 + 5)
    linear = (lambda x: x) if size is None else before[-1]
    assert torch.allclose(before(X), linear(normalised(X)), atol=1e-6)
    linear = (lambda x: x) if size is None else after[0]
    assert torch.allclose(after(X), normalised(linear(X)), atol=1e-6)


def test_wrong_choices():
    with pytest.raises(UserError, match="norm 'layer' is not one of none, features, embedding"):
        head(8, 5, norm="layer")
    with pytest.raises(UserError, match="model.hidden.*needs model.embedding_size"):
        load("ice_glyphs", ["model.hidden=16", "model.embedding_size=null"])


def test_a_config_builds_it_and_older_configs_keep_their_names():
    more = ["model.hidden=16", "model.norm=features", "model.pooling=gem"]
    config = load("ice_glyphs", more)
    embedder = build_embedder(config, torch.device("cpu"))
    kinds = [type(layer).__name__ for layer in embedder.heads[0]]
    assert kinds == ["LayerNorm", "Linear", "ReLU", "Linear"]
    assert {"norm", "hidden"} <= config.settings()["model"].keys()
    plain = load("ice_glyphs")
    assert not {"norm", "hidden"} & plain.settings()["model"].keys()
    assert plain.digest() == "45788d16"


def test_the_configs_of_the_page_are_valid(tmp_path):
    texts = commands.blocks("yaml", (ROOT / "docs/backbones.md").read_text("utf-8"))
    assert len(texts) == 2
    for text in texts:
        pytest.importorskip("timm")
        (tmp_path / "x.yaml").write_text("extends: ice_glyphs\n" + text)
        assert load(tmp_path / "x.yaml").model.backbone.arguments["image_size"] == 224
