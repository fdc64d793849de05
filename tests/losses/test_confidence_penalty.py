"""The confidence penalty against loops, on other losses, and its optimum."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError

SIZES = {"num_classes": 5, "embedding_size": 6}


def unit(x):
    return F.normalize(x, dim=-1)


def soft_triple(m, x):
    cosines = torch.stack([unit(x) @ unit(c).T for c in m.centers])  # (T, N, K)
    return 20 * ((cosines / 0.1).softmax(2) * cosines).sum(2).T


# The logits of other losses, from their formulas
LOGITS = {
    "normface": lambda m, x: 20 * unit(x) @ unit(m.weight).T,
    "adacos": lambda m, x: m.scale * unit(x) @ unit(m.weight).T,
    "arcface": lambda m, x: 64 * unit(x) @ unit(m.weight).T,
    "magface": lambda m, x: 64 * unit(x) @ unit(m.weight).T,
    "cosface": lambda m, x: 64 * unit(x) @ unit(m.pml.W.T).T,
    "heated_up": lambda m, x: 16 * unit(x) @ unit(m.pml.W.T).T,
    "sphereface": lambda m, x: x @ unit(m.weight).T,
    "l_softmax": lambda m, x: x @ m.weight.T,
    "cce": lambda m, x: x @ m.classifier.weight.T + m.classifier.bias,
    "center": lambda m, x: x @ m.classifier.weight.T + m.classifier.bias,
    "proxy_nca": lambda m, x: -torch.cdist(unit(x), unit(m.proxies)).square(),
    "subcenter_arcface": lambda m, x: 64 * (unit(x) @ unit(m.weight).mT).amax(2).T,
    "soft_triple": soft_triple,
    "pml.NormalizedSoftmaxLoss": lambda m, x: unit(x) @ unit(m.W.T).T / 0.05,
    "pml.ArcFaceLoss": lambda m, x: 64 * unit(x) @ unit(m.W.T).T,
}


def penalty(logits, threshold):
    terms = []
    for row in logits:
        p = row.softmax(0)
        entropy = -sum(q * torch.log(q) for q in p)
        terms.append(-entropy if threshold is None else max(0 * entropy, threshold - entropy))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("inner", LOGITS)
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, inner, threshold):
    x, labels = make_batch([3, 1, 4], dim=6, length=0.3)
    arguments = {"loss": inner, "weight": 0.7, "threshold": threshold}
    loss = build_loss("confidence_penalty", **SIZES, **arguments).double().eval()

    def wanted(z):
        return loss.loss(z, labels) + 0.7 * penalty(LOGITS[inner](loss.loss, z), threshold)

    same(derive(lambda z: loss(z, labels), x), derive(wanted, x), 1e-9)


def test_a_weight_of_zero_is_the_other_loss(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4], dim=6)
    loss = build_loss("confidence_penalty", **SIZES, loss="cosface", weight=0.0).double()
    wanted = derive(lambda z: loss.loss(z, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)


@pytest.mark.parametrize("weight", [0.5, 1.0, 4.0])
def test_the_optimum_of_one_image_is_less_confident(build_loss, weight):
    """Of two classes, p minimises -log p + weight (p log p + (1 - p) log(1 - p))."""
    loss = build_loss("confidence_penalty", loss="cce", weight=weight).double()
    loss.loss.classifier.weight.data = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]).double()
    gaps = torch.linspace(-2, 4, 301).double()
    x = torch.eye(4).double()[:1]
    values = [loss(gap * x, torch.tensor([0])).detach() for gap in gaps]
    p = torch.linspace(0.001, 0.99999, 100_000).double()
    formula = -p.log() + weight * (p * p.log() + (1 - p) * (1 - p).log())
    found = float(gaps[torch.stack(values).argmin()].sigmoid())
    assert found == pytest.approx(float(p[formula.argmin()]), abs=0.005)
    assert found < 0.95


def test_above_the_threshold_nothing_is_added(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4], dim=6)
    loss = build_loss("confidence_penalty", **SIZES, loss="cce", threshold=1.5, weight=9.0)
    loss.loss.classifier.weight.data.zero_()  # all classes are equally probable: log 5 is 1.609
    assert float(loss(x, labels).detach()) == pytest.approx(math.log(5))


@pytest.mark.parametrize("inner", ["ice", "proxy_anchor", "pml.ProxyNCALoss"])
def test_losses_without_logits_are_refused(build_loss, inner):
    with pytest.raises(UserError, match="has no logits of classes; choose a loss"):
        build_loss("confidence_penalty", **SIZES, loss=inner)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight must be at least 0, not -1"),
        ({"threshold": 0.0}, "threshold must be positive, not 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("confidence_penalty", loss="cce", **arguments)
