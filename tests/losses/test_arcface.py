"""ArcFace against loops through the angle, PML's, and embeddings on their weights."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from zoo import UserError


def loops(x, labels, weight, scale, degrees):
    m, terms = math.radians(degrees), []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = [(row / row.norm()) @ (w / w.norm()) for w in weight]
        angle = torch.acos(cosines[y])
        own = torch.cos(angle + m) if angle <= math.pi - m else cosines[y] - m * math.sin(m)
        e = [torch.exp(scale * c) for c in cosines]
        e[y] = torch.exp(scale * own)
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("scale", [8.0, 64.0])
@pytest.mark.parametrize("margin", [0.0, 28.6, 80.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, scale, margin):
    x, labels = make_batch([3, 1, 4, 9], dim=3)
    sizes = {"num_classes": 5, "embedding_size": 3}
    mine = build_loss("arcface", **sizes, scale=scale, margin=margin).double()
    mine.weight.data[3] = -x[labels == 3].mean(0)  # some angles are beyond 180 - 80
    found = derive(lambda z: mine(z, labels), x)
    weight = mine.weight.detach()
    same(found, derive(lambda z: loops(z, labels, weight, scale, margin), x), 1e-10)
    theirs = ArcFaceLoss(5, 3, margin=margin, scale=scale).double()
    theirs.W.data = weight.T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-10)


@pytest.mark.parametrize("sign", [1, -1])
def test_on_its_weight_and_opposite_it(build_loss, derive, sign):
    loss = build_loss("arcface", num_classes=2)
    loss.weight.data = torch.eye(4)[:2]
    x, labels = sign * torch.eye(4)[:1], torch.tensor([0])
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_a_margin_beyond_sense(build_loss):
    with pytest.raises(UserError, match="margin must be from 0 to 90 degrees, not 100"):
        build_loss("arcface", margin=100.0)
