"""L-Softmax against loops through the angle, PML's, and a linear layer."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import LargeMarginSoftmaxLoss

from zoo import UserError


def loops(x, labels, weight, m, softening):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        logits = [row @ w for w in weight]
        size = row.norm() * weight[y].norm()
        angle = torch.acos(logits[y] / size)
        k = math.floor(float(angle.detach()) * m / math.pi)
        psi = (-1) ** k * torch.cos(m * angle) - 2 * k
        logits[y] = (softening * logits[y] + size * psi) / (1 + softening)
        e = [torch.exp(z) for z in logits]
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("softening", [0.0, 5.0])
@pytest.mark.parametrize("sizes", [[3, 1, 4, 9], [2, 2, 2]])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, margin, softening, sizes):
    x, labels = make_batch(sizes, dim=3, length=1.0)
    arguments = {"num_classes": 5, "embedding_size": 3, "margin": margin}
    mine = build_loss("l_softmax", **arguments, softening=softening).double()
    found = derive(lambda z: mine(z, labels), x)
    weight = mine.weight.detach()
    same(found, derive(lambda z: loops(z, labels, weight, margin, softening), x), 1e-10)
    mine(x, labels).backward()
    wanted = derive(lambda w: loops(x, labels, w, margin, softening), weight)[1]
    torch.testing.assert_close(mine.weight.grad, wanted)
    if softening:
        return
    theirs = LargeMarginSoftmaxLoss(5, 3, margin=margin).double()
    theirs.W.data = weight.T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-10)


def test_a_margin_of_1_is_a_linear_layer(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    loss = build_loss("l_softmax", num_classes=3, embedding_size=16, margin=1).double()
    weight = loss.weight.detach()
    wanted = derive(lambda z: F.cross_entropy(z @ weight.T, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)


def test_much_softening_is_a_linear_layer(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    sizes = {"num_classes": 3, "embedding_size": 16}
    loss = build_loss("l_softmax", **sizes, softening=1e9).double()
    weight = loss.weight.detach()
    wanted = derive(lambda z: F.cross_entropy(z @ weight.T, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-6)


def test_a_weight_of_zero_has_a_gradient(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4])
    loss = build_loss("l_softmax", num_classes=3, embedding_size=16)
    loss.weight.data[1] = 0
    value = loss(x, labels)
    value.backward()
    assert value.isfinite()
    assert loss.weight.grad.isfinite().all()


def test_impossible_arguments(build_loss):
    with pytest.raises(UserError, match="margin must be from 1 to 10, not 0"):
        build_loss("l_softmax", margin=0)
    with pytest.raises(UserError, match="softening must be at least 0, not -1"):
        build_loss("l_softmax", softening=-1.0)
