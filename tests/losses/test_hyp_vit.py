"""hyp_vit and lorentz in a hyperbolic space, against loops that are written from the formulas."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.config import load
from zoo.errors import UserError


def batch(sizes, seed=0, d=4):
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    x = torch.randn(len(labels), d, generator=random, dtype=torch.float64)
    return x.requires_grad_(), labels


def distance(u, v, c, r):
    def point(x):
        length = x.norm()
        x = x * (r / length).clamp(max=1)
        z = math.sqrt(c) * x.norm()
        return torch.tanh(z) * x / z

    a, b = point(u), point(v)
    top = 2 * c * (a - b).square().sum()
    return torch.acosh(
        1 + top / ((1 - c * a.square().sum()) * (1 - c * b.square().sum()))
    ) / math.sqrt(c)


def naive(x, labels, c, r, tau, by_anchor):
    """Return the mean over pairs, or over anchors of the mean over their pairs."""
    n, of_anchors = len(x), []
    for i in range(n):
        negatives = [k for k in range(n) if labels[k] != labels[i]]
        each = []
        for j in range(n):
            if j == i or labels[j] != labels[i] or not negatives:
                continue
            own = torch.exp(-distance(x[i], x[j], c, r) / tau)
            others = sum(torch.exp(-distance(x[i], x[k], c, r) / tau) for k in negatives)
            each.append(-torch.log(own / (own + others)))
        if each:
            of_anchors.append(each)
    if by_anchor:
        return sum(sum(each) / len(each) for each in of_anchors) / len(of_anchors)
    return sum(map(sum, of_anchors)) / sum(map(len, of_anchors))


LOSSES = {
    "hyp_vit": ({"curvature": 0.1, "clip": 2.3}, 0.2),
    "lorentz": ({"curvature": 1.0, "clip": 1.5}, 1.0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [[3, 3, 3], [2, 5, 1, 3]])
def test_against_loops(name, sizes):
    arguments, tau = LOSSES[name]
    space = zoo.build("spaces", "hyperbolic", **arguments)
    x, labels = batch(sizes)
    found = zoo.build("losses", name, space=space)(x, labels)
    (gradient,) = torch.autograd.grad(found, x)
    wanted = naive(x, labels, arguments["curvature"], arguments["clip"], tau, name == "lorentz")
    (expected,) = torch.autograd.grad(wanted, x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, expected)


def test_two_images_a_class_make_both_equal():
    x, labels = batch([2, 2, 2])
    space = zoo.build("spaces", "hyperbolic")
    one = zoo.build("losses", "hyp_vit", space=space, temperature=1.0)(x, labels)
    torch.testing.assert_close(one, zoo.build("losses", "lorentz", space=space)(x, labels))


@pytest.mark.parametrize("name", LOSSES)
def test_a_space_is_needed(name):
    with pytest.raises(UserError, match="set model.space=hyperbolic"):
        zoo.build("losses", name)
    with pytest.raises(UserError) as error:
        load("ice_glyphs", [f"loss={name}"])
    says = f"model.space: {name} compares images in another space; set model.space=hyperbolic"
    assert says in str(error.value)
