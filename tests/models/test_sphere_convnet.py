"""Convolutions of angles, against loops over patches and filters."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo.errors import UserError
from zoo.models.sphere_convnet import SphereConv, SphereConvNet

OPERATORS = ("linear", "cosine", "sigmoid")


def g(theta, operator, k):
    if operator == "linear":
        return 1 - 2 * theta / math.pi
    if operator == "cosine":
        return math.cos(theta)
    edge, inner = math.exp(-math.pi / (2 * k)), math.exp(theta / k - math.pi / (2 * k))
    return (1 + edge) / (1 - edge) * (1 - inner) / (1 + inner)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("k", [0.3, 1.0])
def test_equals_the_loops(operator, k):
    torch.manual_seed(0)
    conv = SphereConv(2, 3, operator=operator, k=k).double()
    maps = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    found, padded = conv(maps).detach(), F.pad(maps, (1, 1, 1, 1))
    assert found.shape == (2, 3, 4, 5)
    for n in range(2):
        for o in range(3):
            for i in range(4):
                for j in range(5):
                    patch, w = padded[n, :, i : i + 3, j : j + 3], conv.weight[o].detach()
                    cosine = (patch * w).sum() / patch.norm() / w.norm()
                    wanted = g(math.acos(float(cosine)), operator, k)
                    assert float(found[n, o, i, j]) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("operator", OPERATORS)
def test_from_one_over_zero_to_minus_one(operator):
    conv = SphereConv(1, 1, size=1, operator=operator)
    with torch.no_grad():
        conv.weight.fill_(2.0)
    found = conv(torch.tensor([3.0, 0.0, -0.5]).reshape(1, 1, 1, 3))
    torch.testing.assert_close(found.flatten(), torch.tensor([1.0, 0.0, -1.0]), atol=2e-3, rtol=0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_lengths_do_not_matter(operator):
    conv, maps = SphereConv(3, 4, operator=operator), torch.randn(2, 3, 6, 6)
    wanted = conv(maps)
    torch.testing.assert_close(conv(100 * maps), wanted, atol=1e-5, rtol=0)
    with torch.no_grad():
        conv.weight.mul_(torch.tensor([0.1, 2.0, 3.0, 50.0]).reshape(4, 1, 1, 1))
    torch.testing.assert_close(conv(maps), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e6])
def test_flat_images_and_filters_have_finite_gradients(operator, value):
    conv = SphereConv(1, 2, operator=operator)
    with torch.no_grad():
        conv.weight[0].fill_(1.0)
        conv.weight[1].zero_()
    maps = torch.full((1, 1, 5, 5), value, requires_grad=True)
    conv(maps).sum().backward()
    assert maps.grad.isfinite().all()
    assert conv.weight.grad.isfinite().all()


def test_the_network_is_that_of_convnet_with_other_convolutions():
    net = SphereConvNet(width=8, blocks=3, operator="sigmoid", k=0.5)
    assert net.feature_dims == (32,)
    (level,) = net(torch.randn(2, 1, 32, 32))
    assert level.shape == (2, 32, 4, 4)
    convs = [module for module in net.modules() if isinstance(module, SphereConv)]
    assert [tuple(conv.weight.shape[:2]) for conv in convs] == [(8, 1), (16, 8), (32, 16)]
    assert {(conv.operator, conv.k) for conv in convs} == {("sigmoid", 0.5)}
    assert not [module for module in net.modules() if isinstance(module, torch.nn.Conv2d)]
    other = zoo.build("backbones", "convnet", width=8, blocks=3)
    assert set(net.state_dict()) == set(other.state_dict())
    net.train()(torch.randn(4, 1, 32, 32))[0].square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.slow
def test_learns_to_tell_patterns_apart():
    torch.manual_seed(0)
    patterns = torch.randn(8, 1, 16, 16)
    net, probe = SphereConvNet(width=8), torch.nn.Linear(64, 8)
    optimizer = torch.optim.Adam([*net.parameters(), *probe.parameters()], lr=1e-2)
    labels = torch.arange(8).repeat(4)
    for _ in range(15):
        images = patterns[labels] + 0.3 * torch.randn(32, 1, 16, 16)
        loss = F.cross_entropy(probe(net(images)[0].mean((2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"operator": "square"}, "operator must be linear, cosine or sigmoid, not 'square'"),
        ({"k": 0.0}, "k must be at least 0.01, not 0.0"),
        ({"width": 0}, "1 or more"),
    ],
)
def test_what_cannot_be_used(wrong, says):
    with pytest.raises(UserError, match=says):
        SphereConvNet(**wrong)
