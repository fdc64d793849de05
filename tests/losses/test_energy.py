"""Minimum hyperspherical energy against loops, on other losses, and at its minimum."""

from __future__ import annotations

import math

import pytest
import torch

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
@pytest.mark.parametrize(("half_space", "degrees"), [(False, 120), (True, 60)])
def test_the_minimum_of_three_points_in_a_plane(build_loss, power, half_space, degrees):
    """It is a triangle; with their opposites, a hexagon."""
    arguments = {"loss": "normface", "power": power, "half_space": half_space}
    loss = build_loss("energy", num_classes=3, embedding_size=2, **arguments).double()
    weight, x, label = loss.loss.weight, torch.zeros(1, 2).double(), torch.tensor([0])
    angles = (torch.arange(3) * degrees).double().deg2rad()
    weight.data = torch.stack([angles.cos(), angles.sin()], 1)
    least = loss(x, label)
    least.backward()
    assert weight.grad.abs().max() < 1e-12
    for seed in range(20):
        moved = angles + torch.randn(3, generator=torch.Generator().manual_seed(seed))
        weight.data = torch.stack([moved.cos(), moved.sin()], 1)
        assert loss(x, label) > least


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
