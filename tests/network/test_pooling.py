"""Each pooling against loops in float64; where the learned ones start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo import UserError
from zoo.base import Preprocess
from zoo.network.embedder import Embedder
from zoo.network.pooling import pooling

MAPS = torch.rand(3, 5, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1


def gem(maps, p):
    result = maps.new_zeros(maps.shape[:2])
    for n in range(maps.shape[0]):
        for c in range(maps.shape[1]):
            values = [max(float(x), 1e-6) for x in maps[n, c].flatten()]
            result[n, c] = (sum(x**p for x in values) / len(values)) ** (1 / p)
    return result


def attention(maps, w):
    result = maps.new_zeros(maps.shape[:2])
    for n in range(maps.shape[0]):
        columns = [maps[n, :, i, j] for i in range(maps.shape[2]) for j in range(maps.shape[3])]
        scores = torch.stack([(w * column).sum() for column in columns]).exp()
        for share, column in zip(scores / scores.sum(), columns, strict=True):
            result[n] += share * column
    return result


def pooled(kind, maps, **values):
    pool = pooling(kind, maps.shape[1]).double()
    for name, value in values.items():
        pool.get_parameter(name).data.copy_(torch.as_tensor(value))
    return pool(maps, torch.float64)


@pytest.mark.parametrize("p", [1.0, 2.5, 3.0, 8.0])
def test_gem_equals_the_loops(p):
    assert torch.allclose(pooled("gem", MAPS, p=p), gem(MAPS, p), rtol=1e-12)


def test_gem_has_its_limits():
    assert torch.allclose(pooled("gem", MAPS, p=1.0), MAPS.mean((2, 3)), rtol=1e-12)
    assert torch.allclose(pooled("gem", MAPS, p=2000.0), MAPS.amax((2, 3)), rtol=2e-3)
    assert torch.allclose(pooled("gem", MAPS, p=3.0), pooled("gem", MAPS))


def test_gem_is_finite_and_has_a_gradient_for_any_features():
    pool = pooling("gem", 5)
    for maps in (torch.zeros(2, 5, 3, 3), torch.full((2, 5, 3, 3), -1.0), 1e30 * MAPS.float()):
        x = maps.clone().requires_grad_()
        value = pool(x, torch.float32)
        value.sum().backward()
        assert value.isfinite().all()
        assert x.grad.isfinite().all()
        assert pool.p.grad.isfinite()
    assert pool.p.grad != 0


def test_the_gradients_are_the_derivatives():
    for kind in ("gem", "attention"):
        pool = pooling(kind, 5).double()
        parameters = tuple(pool.parameters())
        x = MAPS.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, *_, pool=pool: pool(x, torch.float64), (x, *parameters)
        )


def test_attention_equals_the_loops():
    w = torch.linspace(-2, 3, 5, dtype=torch.float64)
    assert torch.allclose(pooled("attention", MAPS, weight=w), attention(MAPS, w), rtol=1e-12)


def test_attention_starts_as_the_mean():
    assert torch.allclose(pooled("attention", MAPS), MAPS.mean((2, 3)), rtol=1e-12)


def test_a_kind_that_there_is_not():
    with pytest.raises(UserError, match="pooling 'gm' is not one of avg, max, gem, attention"):
        pooling("gm", 5)


class Levels(nn.Module):
    preprocess = Preprocess()
    feature_dims = (4, 6)

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 6, 3)

    def forward(self, images):
        return self.first(images).relu(), self.second(images).relu().mean((2, 3))


@pytest.mark.parametrize("kind", ["gem", "attention"])
def test_what_is_learned_is_new_and_trained_though_the_trunk_is_frozen(kind):
    embedder = Embedder(Levels(), 3, kind, "trunk")
    images = torch.randint(256, (2, 3, 9, 9), dtype=torch.uint8)
    embedder(images).square().sum().backward()
    (first, *rest) = embedder.head_parameters()
    assert first is next(embedder.pools[0].parameters())
    assert first.grad.abs().sum() > 0
    assert not embedder.trunk_parameters()
    assert len(rest) == 1 + 4  # the other level's, which is pooled already; two linear layers


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_weights_of_older_runs_still_fit(kind):
    embedder = Embedder(Levels(), 3, kind)
    assert not [name for name in embedder.state_dict() if name.startswith("pools")]


def test_under_autocast_it_computes_in_float32():
    embedder = Embedder(Levels(), 3, "gem")
    images = torch.randint(256, (2, 3, 9, 9), dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        assert embedder.features(images).dtype == torch.float32
    assert zoo.build("backbones", "convnet").feature_dims == (128,)
