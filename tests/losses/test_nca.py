"""NCA against loops, PML's, and where that one drops an anchor."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import NCALoss


def loops(x, labels, scale):
    y, terms = labels.tolist(), []
    for a in range(len(y)):
        e = {k: torch.exp(-scale * (x[a] - x[k]).square().sum()) for k in range(len(y)) if k != a}
        positives = [k for k in e if y[k] == y[a]]
        if positives:
            terms.append(-torch.log(sum(e[k] for k in positives) / sum(e.values())))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, scale):
    x, labels = make_batch([3, 1, 4, 2], dim=8, length=0.5)
    mine = derive(lambda z: build_loss("nca", scale=scale)(z, labels), x)
    same(mine, derive(lambda z: loops(z, labels, scale), x), 1e-12)
    distance = LpDistance(power=2, normalize_embeddings=False)
    theirs = NCALoss(softmax_scale=scale, distance=distance)
    same(mine, derive(lambda z: theirs(z, labels), x), 1e-9)


def test_an_anchor_beyond_the_range_of_exp_counts(build_loss, derive):
    x, labels = torch.tensor([[0.0, 0], [12, 0], [1, 0]]), torch.tensor([0, 0, 1])
    value, gradient = derive(lambda z: build_loss("nca")(z, labels), x)
    assert float(value) == pytest.approx(((144 - 1) + (144 - 121)) / 2)
    assert gradient[0].abs().max() > 10
    theirs = NCALoss(distance=LpDistance(power=2, normalize_embeddings=False))(x, labels)
    assert float(theirs) == pytest.approx(144 - 121)  # of the other anchor alone
