"""Proxy-NCA against loops, its other form, and PML's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import ProxyNCALoss


@pytest.fixture
def made(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4, 2], dim=8)

    def make(**arguments):
        torch.manual_seed(0)
        return build_loss("proxy_nca", num_classes=6, embedding_size=8, **arguments).double()

    return x, labels, make


@pytest.mark.parametrize("scale", [1.0, 9.0])
@pytest.mark.parametrize("include", [False, True])
def test_equals_the_loops(made, derive, same, scale, include):
    x, labels, make = made
    loss = make(scale=scale, include_positive=include)
    proxies = loss.proxies.detach()
    p = proxies / proxies.norm(dim=1, keepdim=True)

    def loops(z):
        terms = []
        for row, y in zip(z, labels.tolist(), strict=True):
            d = [scale * (row / row.norm() - p[c]).square().sum() for c in range(6)]
            others = [torch.exp(-d[c]) for c in range(6) if include or c != y]
            terms.append(d[y] + torch.log(sum(others)))
        return sum(terms) / len(terms)

    same(derive(lambda z: loss(z, labels), x), derive(loops, x), 1e-13)


def test_with_the_positive_it_is_the_softplus_of_that_without(made, derive, same):
    x, labels, make = made
    x, labels = x[:1], labels[:1]
    without = derive(lambda z: make(scale=4.0)(z, labels), x)
    with_it = derive(lambda z: make(scale=4.0, include_positive=True)(z, labels), x)
    wanted = torch.log1p(without[0].exp()), without[0].sigmoid() * without[1]
    same(with_it, wanted, 1e-13)


@pytest.mark.parametrize("scale", [1.0, 8.0, 9.0])
def test_with_the_positive_it_is_pmls(made, derive, same, scale):
    x, labels, make = made
    mine = make(scale=scale, include_positive=True)
    theirs = ProxyNCALoss(6, 8, softmax_scale=scale).double()
    theirs.proxies.data = mine.proxies.data
    same(derive(lambda z: mine(z, labels), x), derive(lambda z: theirs(z, labels), x), 1e-13)


def test_it_can_be_below_zero(made):
    _, labels, make = made
    loss = make(scale=9.0)
    placed = F.normalize(loss.proxies.detach())[labels]
    assert loss(placed, labels) < 0


def test_one_class_gives_zero(build_loss, derive):
    loss = build_loss("proxy_nca", num_classes=1)
    value, gradient = derive(lambda z: loss(z, torch.zeros(3, dtype=torch.long)), torch.ones(3, 4))
    assert value == 0
    assert not gradient.any()
