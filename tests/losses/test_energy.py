"""Minimum hyperspherical energy against loops, on other losses, and at its minimum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import zoo
from zoo import UserError

SIZES = {"num_classes": 5, "embedding_size": 6}


def loops(weights, power, half_space):
    points = [w / w.norm() for w in weights]
    if half_space:
        points += [-p for p in points]
    total, pairs = 0.0, 0
    for i, p in enumerate(points):
        for j, q in enumerate(points):
            if i != j:
                distance = (p - q).norm()
                total = total + (-torch.log(distance) if power == 0 else distance**-power)
                pairs += 1
    return total / pairs


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("half_space", [False, True])
@pytest.mark.parametrize("block", [1 << 22, 16, 1])
def test_equals_the_loops(build_loss, make_batch, derive, monkeypatch, power, half_space, block):
    from zoo.losses import energy

    monkeypatch.setattr(energy, "_BLOCK_ELEMENTS", block)
    x, labels = make_batch([3, 1, 4], dim=6)
    arguments = {"power": power, "half_space": half_space, "weight": 3.0}
    loss = build_loss("energy", **SIZES, loss="normface", **arguments).double()
    weights = loss.loss.weight.detach().clone()
    plain = loss.loss(x, labels)
    value = loss(x, labels)
    wanted, gradient = derive(lambda w: loops(w, power, half_space), weights)
    torch.testing.assert_close(value, plain + 3 * wanted)
    (value - plain).backward()
    torch.testing.assert_close(loss.loss.weight.grad, 3 * gradient)


@pytest.mark.parametrize(
    ("inner", "rows"),
    [
        ("cosface", lambda m: m.pml.W.T),
        ("cce", lambda m: m.classifier.weight),
        ("proxy_nca", lambda m: m.proxies),
        ("proxy_anchor", lambda m: m.pml.proxies),
        ("soft_triple", lambda m: m.centers.flatten(0, 1)),
        ("pml.NormalizedSoftmaxLoss", lambda m: m.W.T),
        ("pml.ProxyAnchorLoss", lambda m: m.proxies),
    ],
)
def test_it_finds_the_weights(build_loss, make_batch, inner, rows):
    x, labels = make_batch([3, 1, 4], dim=6)
    loss = build_loss("energy", **SIZES, loss=inner).double()
    energy = loops(rows(loss.loss).detach(), 2.0, half_space=False)
    torch.testing.assert_close(loss(x, labels), loss.loss(x, labels) + 10 * energy)


def test_one_of_several_is_chosen_by_name(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4], dim=6)
    with pytest.raises(UserError, match=r"several parameters; .* classifier.weight"):
        build_loss("energy", **SIZES, loss="center")
    loss = build_loss("energy", **SIZES, loss="center", of="classifier.weight").double()
    energy = loops(loss.loss.classifier.weight.detach(), 2.0, half_space=False)
    torch.testing.assert_close(loss(x, labels), loss.loss(x, labels) + 10 * energy)
    with pytest.raises(UserError, match="has no wieght; choose one by of=: weight"):
        build_loss("energy", **SIZES, loss="normface", of="wieght")
    with pytest.raises(UserError, match="ICELoss has no weights for each class; choose another"):
        build_loss("energy", **SIZES, loss="ice")


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("half_space", "cosine"), [(False, -0.5), (True, 0.5)])
def test_three_points_in_a_plane_spread(power, half_space, cosine):
    """At the minimum three points form a triangle; with their opposites, a hexagon."""
    torch.manual_seed(0)
    arguments = {"power": power, "half_space": half_space}
    inner = zoo.build("losses", "normface", num_classes=3, embedding_size=2)
    loss = zoo.build("losses", "energy", loss=inner, **arguments).double()
    optimizer = torch.optim.Adam([inner.weight], lr=0.1)
    x, labels = torch.zeros(1, 2).double(), torch.tensor([0])
    for _ in range(150):
        optimizer.zero_grad()
        loss(x, labels).backward()
        optimizer.step()
    w = nn.functional.normalize(inner.weight.detach())
    angles = (w @ w.T)[~torch.eye(3, dtype=torch.bool)]
    wanted = torch.full((6,), cosine).double()
    torch.testing.assert_close(angles.abs() if half_space else angles, wanted, atol=0.02, rtol=0)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_equal_and_zero_weights_are_finite(build_loss, power):
    loss = build_loss("energy", **SIZES, loss="normface", power=power)
    loss.loss.weight.data[1] = loss.loss.weight.data[0]
    loss.loss.weight.data[2] = 0
    value = loss(torch.ones(2, 6), torch.tensor([0, 1]))
    value.backward()
    assert value.isfinite()
    assert loss.loss.weight.grad.isfinite().all()


def test_one_class_has_no_energy(build_loss):
    loss = build_loss("energy", num_classes=1, embedding_size=4, loss="normface")
    assert loss(torch.ones(2, 4), torch.zeros(2).long()) == 0


def test_impossible_arguments(build_loss):
    with pytest.raises(UserError, match="power must be at least 0, not -1"):
        build_loss("energy", loss="normface", power=-1.0)
    with pytest.raises(UserError, match="weight must be at least 0, not -1"):
        build_loss("energy", loss="normface", weight=-1.0)
    assert math.isfinite(build_loss("energy", loss="normface").weight)
