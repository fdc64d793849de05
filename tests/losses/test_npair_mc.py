"""The N-pair loss against loops, and what PML's default does instead."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import NPairsLoss

from zoo import UserError


def loops(x, labels, l2_weight):
    """One pair of each class, as the code of TensorFlow has it."""
    pairs = [(labels == c).nonzero().flatten()[:2].tolist() for c in sorted(set(labels.tolist()))]
    total = x.sum() * 0
    for a, p in pairs:
        others = [torch.exp(x[a] @ x[q] - x[a] @ x[p]) for b, q in pairs if b != a]
        total = total + torch.log(1 + sum(others))
    anchors, positives = (x[[pair[side] for pair in pairs]] for side in (0, 1))
    lengths = anchors.square().sum(1).mean() + positives.square().sum(1).mean()
    return total / len(pairs) + 0.25 * l2_weight * lengths


@pytest.mark.parametrize("l2_weight", [0.0, 0.002, 1.0])
@pytest.mark.parametrize("classes", [2, 9])
def test_equals_the_loops(build_loss, make_batch, derive, same, l2_weight, classes):
    x, labels = make_batch([2] * classes, length=0.5)
    loss = build_loss("npair_mc", l2_weight=l2_weight)
    one = derive(lambda z: loss(z, labels), x)
    other = derive(lambda z: loops(z, labels, l2_weight), x)
    same(one, other, 1e-13)


def test_pmls_default_is_another_loss(build_loss, make_batch):
    x, labels = make_batch([2] * 9, length=0.5)
    mine, theirs = build_loss("npair_mc", l2_weight=0.0), NPairsLoss()
    assert abs(float(mine(x, labels)) - float(theirs(x, labels))) > 0.1


def test_one_class_alone_gives_zero(build_loss, make_batch, derive):
    x, labels = make_batch([2])
    loss = build_loss("npair_mc", l2_weight=0.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value == 0
    assert not gradient.any()


def test_a_senseless_weight(build_loss):
    with pytest.raises(UserError, match="l2_weight must be at least 0"):
        build_loss("npair_mc", l2_weight=-0.1)
