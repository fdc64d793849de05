"""Sub-center ArcFace against loops, PML's, and ArcFace with one centre."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import SubCenterArcFaceLoss

from zoo import UserError


def loops(x, labels, weight, scale, degrees):
    m, terms = math.radians(degrees), []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = [
            max((row / row.norm()) @ (w / w.norm()) for w in of_class) for of_class in weight
        ]
        angle = torch.acos(cosines[y])
        own = torch.cos(angle + m) if angle <= math.pi - m else cosines[y] - m * math.sin(m)
        e = [torch.exp(scale * c) for c in cosines]
        e[y] = torch.exp(scale * own)
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("scale", [8.0, 64.0])
@pytest.mark.parametrize(("margin", "sub_centers"), [(0.0, 2), (28.6, 3), (80.0, 4)])
@pytest.mark.parametrize("sizes", [[3, 1, 4, 9], [2, 2, 2]])
def test_equals_the_loops_and_pmls(
    build_loss, make_batch, derive, same, scale, margin, sub_centers, sizes
):
    x, labels = make_batch(sizes, dim=3)
    arguments = {"num_classes": 5, "embedding_size": 3, "sub_centers": sub_centers}
    mine = build_loss("subcenter_arcface", **arguments, scale=scale, margin=margin).double()
    mine.weight.data[0] = -x[labels == 0].mean(0)  # some angles are beyond 180 - 80
    found = derive(lambda z: mine(z, labels), x)
    weight = mine.weight.detach()
    same(found, derive(lambda z: loops(z, labels, weight, scale, margin), x), 1e-10)
    theirs = SubCenterArcFaceLoss(**arguments, margin=margin, scale=scale).double()
    theirs.W.data = weight.flatten(0, 1).T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-10)


def test_one_centre_is_arcface(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    sizes = {"num_classes": 5, "embedding_size": 16}
    arcface = build_loss("arcface", **sizes).double()
    one = build_loss("subcenter_arcface", **sizes, sub_centers=1).double()
    one.weight.data = arcface.weight.data[:, None].clone()
    same(derive(lambda z: one(z, labels), x), derive(lambda z: arcface(z, labels), x), 1e-12)


def test_only_the_nearest_centre_of_a_class_learns(build_loss):
    loss = build_loss("subcenter_arcface", sub_centers=2).double()
    loss.weight.data = torch.eye(4).double().view(2, 2, 4).clone()
    x = torch.tensor([[0.9, 0.1, 0.3, 0.2]]).double()
    loss(x, torch.tensor([0])).backward()
    learns = loss.weight.grad.abs().sum(2) > 0
    assert learns.tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("sign", [1, -1])
def test_on_its_centre_and_opposite_it(build_loss, derive, sign):
    loss = build_loss("subcenter_arcface", sub_centers=1)
    loss.weight.data = torch.eye(4)[:2, None]
    x, labels = sign * torch.eye(4)[:1], torch.tensor([0])
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_no_centres(build_loss):
    with pytest.raises(UserError, match="sub_centers must be at least 1, not 0"):
        build_loss("subcenter_arcface", sub_centers=0)
