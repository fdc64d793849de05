"""The ranked list loss against loops, and where PML's differs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import RankedListLoss

from zoo import UserError

BATCHES = {"20x3": [3] * 20, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}
SETTINGS = {
    "sop": {},
    "cub": {"alpha": 1.4, "margin": 0.2},
    "both_temperatures": {"temperature_pos": 3.0, "balance": 0.5},
    "both_ends": {"query_gradient_only": False},
}


def loops(x, y, alpha=1.2, margin=0.4, tn=10.0, tp=0.0, balance=1.0):
    """The value, in plain numbers."""
    f = F.normalize(x)
    n, total = len(x), 0.0
    for a in range(n):
        for same, threshold, sign, temperature, share in (
            (True, alpha - margin, 1, tp, 1.0),
            (False, alpha, -1, tn, balance),
        ):
            weights, hinges = [], []
            for b in range(n):
                hinge = sign * (float((f[a] - f[b]).norm()) - threshold)
                if b != a and (y[a] == y[b]) == same and hinge > 0:
                    weights.append(math.exp(temperature * hinge))
                    hinges.append(hinge)
            if hinges:
                products = sum(w * h for w, h in zip(weights, hinges, strict=True))
                total += share * products / sum(weights) / n
    return total


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_value_and_gradient_equal_the_loops(build_loss, make_batch, derive, sizes, settings):
    x, labels = make_batch(sizes)
    loss = build_loss("rll", **settings)
    value, gradient = derive(lambda z: loss(z, labels), x)
    short = {"temperature_neg": "tn", "temperature_pos": "tp"}
    kept = {short.get(k, k): v for k, v in settings.items() if k != "query_gradient_only"}
    assert float(value) == pytest.approx(loops(x, labels.tolist(), **kept), abs=1e-13)
    torch.testing.assert_close(gradient, loss.reference_gradient(x, labels), atol=1e-13, rtol=0)
    assert gradient.abs().max() > 1e-4


def test_only_the_query_is_moved(build_loss, derive):
    """Of two images one is a query whose positive is far; the gallery stays where it is."""
    loss = build_loss("rll")
    gallery = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    one = torch.tensor([1])
    loss(query, one, ref_emb=gallery, ref_labels=one).backward()
    assert query.grad.norm() > 0.1
    assert gallery.grad is None or not gallery.grad.any()


def test_it_is_the_derivative_without_weights_and_with_both_ends(build_loss, make_batch):
    x, labels = make_batch([3] * 6, dim=5)
    loss = build_loss("rll", temperature_neg=0.0, query_gradient_only=False)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())
    other = build_loss("rll", temperature_neg=0.0)
    assert not torch.autograd.gradcheck(lambda z: other(z, labels), x, raise_exception=False)


def test_pmls_is_half_of_it_without_temperature(build_loss, make_batch, derive, same):
    x, labels = make_batch([3] * 8)
    mine = build_loss("rll", temperature_neg=0.0, query_gradient_only=False)
    theirs = RankedListLoss(margin=0.4, Tn=0, imbalance=0.5, alpha=1.2, Tp=0)
    value, gradient = derive(lambda z: theirs(z, labels), x)
    same(derive(lambda z: mine(z, labels), x), (2 * value, 2 * gradient), 3e-4)


def test_inside_the_inner_and_beyond_the_outer_sphere_nothing_is_left(build_loss, derive):
    x = torch.tensor([[1.0, 0], [1, 0.01], [-1, 0], [-1, 0.01]], dtype=torch.float64)
    loss = build_loss("rll")
    value, gradient = derive(lambda z: loss(z, torch.tensor([0, 0, 1, 1])), x)
    assert value == 0
    assert not gradient.any()


def test_a_hot_temperature_does_not_overflow(build_loss, make_batch, derive):
    x, labels = make_batch([3] * 8)
    loss = build_loss("rll", temperature_neg=1e4, temperature_pos=1e4)
    value, gradient = derive(lambda z: loss(z, labels), x.float())
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("wrong", [{"alpha": 2.1}, {"margin": 1.3}, {"margin": -0.1}])
def test_senseless_spheres(build_loss, wrong):
    with pytest.raises(UserError, match="0 <= margin <= alpha <= 2"):
        build_loss("rll", **wrong)
    with pytest.raises(UserError, match="at least 0"):
        build_loss("rll", balance=-1.0)
    with pytest.raises(UserError, match="alpha: must be"):
        build_loss("rll", alpha=float("nan"))
