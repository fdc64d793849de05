"""ProxyNCA++ against loops, Proxy-NCA, PML's, and the limits of the temperature."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import ProxyNCALoss

from zoo import UserError


@pytest.fixture
def built(build_loss):
    def build(name="proxy_nca_pp", **arguments):
        torch.manual_seed(0)
        return build_loss(name, num_classes=6, embedding_size=8, **arguments).double()

    return build


@pytest.mark.parametrize("sizes", [[3, 1, 4, 2], [2] * 6])
@pytest.mark.parametrize("scale", [9.0, 1.0, 40.0])
def test_equals_the_loops_and_pmls(built, make_batch, derive, same, sizes, scale):
    x, labels = make_batch(sizes, dim=8)
    loss = built(scale=scale)
    p = loss.proxies.detach()
    p = p / p.norm(dim=1, keepdim=True)

    def loops(z):
        terms = []
        for row, y in zip(z, labels.tolist(), strict=True):
            e = [torch.exp(-scale * (row / row.norm() - q).square().sum()) for q in p]
            terms.append(-torch.log(e[y] / sum(e)))
        return sum(terms) / len(terms)

    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(loops, x), 1e-12)
    theirs = ProxyNCALoss(6, 8, softmax_scale=scale).double()
    theirs.proxies.data = loss.proxies.data
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)


def test_it_is_proxy_nca_with_the_positive_at_a_scale_of_9(built, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    other = built("proxy_nca", scale=9.0, include_positive=True)
    loss = built()
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: other(z, labels), x), 0.0)


def test_at_a_high_temperature_all_proxies_are_equally_probable(built, make_batch):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    assert float(built(scale=1e-9)(x, labels).detach()) == pytest.approx(math.log(6))


def test_an_image_on_its_proxy_costs_nearly_nothing(built):
    loss = built(scale=100.0)
    loss.proxies.data = torch.eye(8).double()[:6]
    value = float(loss(torch.eye(8).double()[:6], torch.arange(6)).detach())
    assert value == pytest.approx(5 * math.exp(-200))


def test_a_scale_of_zero(build_loss):
    with pytest.raises(UserError, match="scale must be positive, not 0"):
        build_loss("proxy_nca_pp", scale=0.0)
