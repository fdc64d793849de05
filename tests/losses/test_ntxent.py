"""NT-Xent against loops, PML's, and where that one is capped."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner


def loops(x, labels, temperature):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        e = [torch.exp(f[a] @ f[k] / temperature) for k in range(len(y))]
        negatives = sum(e[k] for k in range(len(y)) if y[k] != y[a])
        for p in range(len(y)):
            if p != a and y[p] == y[a]:
                terms.append(-torch.log(e[p] / (e[p] + negatives)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, temperature):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    mine = build_loss("ntxent", temperature=temperature)
    theirs = NTXentLoss(temperature=temperature)
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, temperature), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)
    mined = MultiSimilarityMiner(0.3)(x, labels)
    same(
        derive(lambda z: mine(z, labels, mined), x),
        derive(lambda z: theirs(z, labels, mined), x),
        1e-12,
    )
    gallery, others = make_batch([2, 2, 1, 3], dim=8, seed=1)
    same(
        derive(lambda z: mine(z, labels, None, gallery, others), x),
        derive(lambda z: theirs(z, labels, None, gallery, others), x),
        1e-12,
    )


def test_the_worst_pairs_keep_their_value_and_gradient(build_loss, derive):
    x = torch.tensor([[1.0, 0], [-1, 0.1], [1, 0.1], [-1, 0]])
    labels = torch.tensor([0, 0, 1, 1])
    value, gradient = derive(lambda z: build_loss("ntxent", temperature=1 / 64)(z, labels), x)
    capped, dead = derive(lambda z: NTXentLoss(temperature=1 / 64)(z, labels), x)
    assert float(value) == pytest.approx(127.4, abs=0.1)
    assert gradient.abs().max() > 1
    assert float(capped) == pytest.approx(87.3, abs=0.1)
    assert not dead.any()
