"""Contrastive loss against loops."""

from __future__ import annotations

import pytest
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss


def loops(x, labels, margin):
    y, pulled, pushed = labels.tolist(), [], []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        for b in range(len(y)):
            d = (f[a] - f[b]).norm()
            if a != b and y[a] == y[b]:
                pulled.append(d.square() / 2)
            elif a != b and d < margin:
                pushed.append((margin - d).square() / 2)
    return sum(pulled) / max(1, len(pulled)) + sum(pushed) / max(1, len(pushed))


@pytest.mark.parametrize("margin", [0.5, 1.0, 1.5])
def test_equals_the_loops(build_loss, make_batch, derive, same, margin):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    loss = build_loss("contrastive", margin=margin)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, margin), x), 1e-12)


def test_on_positives_it_is_half_of_pmls_on_squared_distances(build_loss, make_batch, derive, same):
    x, labels = make_batch([5], dim=8)
    theirs = ContrastiveLoss(distance=LpDistance(power=2))
    found = derive(lambda z: build_loss("contrastive")(z, labels), x)
    same(found, derive(lambda z: theirs(z, labels) / 2, x), 1e-9)


def test_positives_alone_and_negatives_alone(build_loss, make_batch):
    x, labels = make_batch([5], dim=8)
    loss = build_loss("contrastive", margin=1.5)
    assert float(loss(x, labels)) == pytest.approx(float(loops(x, labels, 1.5)))
    x, labels = make_batch([1] * 5, dim=8)
    assert float(loss(x, labels)) == pytest.approx(float(loops(x, labels, 1.5)))
