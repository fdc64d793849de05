"""AdaCos against loops that follow its scale, and the fixed scale."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss


def cosine_table(x, weight):
    return [[(row / row.norm()) @ (w / w.norm()) for w in weight] for row in x]


def loops(x, labels, weight, scale):
    terms = []
    for cosines, y in zip(cosine_table(x, weight), labels.tolist(), strict=True):
        e = [torch.exp(scale * c) for c in cosines]
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


def next_scale(x, labels, weight, scale):
    """The formula of the paper, with angles."""
    angles, sums = [], []
    for cosines, y in zip(cosine_table(x, weight), labels.tolist(), strict=True):
        angles.append(math.acos(float(cosines[y])))
        sums.append(sum(math.exp(scale * float(c)) for k, c in enumerate(cosines) if k != y))
    median = sorted(angles)[(len(angles) - 1) // 2]
    return math.log(sum(sums) / len(sums)) / math.cos(min(math.pi / 4, median)), median


@pytest.mark.parametrize("near", [False, True])
def test_four_batches_equal_the_loops(build_loss, make_batch, derive, same, near):
    """Near its weights, the median of the angles is below 45 degrees."""
    loss = build_loss("adacos", num_classes=12, embedding_size=16).double()
    weight, scale = loss.weight.detach(), math.sqrt(2) * math.log(11)
    for step in range(4):
        x, labels = make_batch([4, 4, 3, 1] if step % 2 else [2] * 8, seed=step)
        if near:
            x = 0.05 * x + weight[labels]
        if step:
            scale, median = next_scale(x, labels, weight, scale)
            assert (median < math.pi / 4) == near  # the two cases differ
        wanted = derive(lambda z: loops(z, labels, weight, scale), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-6)  # noqa: B023
        assert float(loss.scale) == pytest.approx(scale)


def test_the_fixed_scale_is_pmls_normalised_softmax(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    mine = build_loss("adacos", num_classes=30, embedding_size=16, dynamic=False).double()
    theirs = NormalizedSoftmaxLoss(30, 16, temperature=1 / (math.sqrt(2) * math.log(29))).double()
    theirs.W.data = mine.weight.data.T.clone()
    for _ in range(3):
        wanted = derive(lambda z: theirs(z, labels), x)
        same(derive(lambda z: mine(z, labels), x), wanted, 1e-6)


def test_evaluation_keeps_the_scale(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    loss = build_loss("adacos", num_classes=9, embedding_size=16)
    loss(x, labels)
    loss(x, labels)
    kept, seen = loss.scale.clone(), int(loss.seen)
    loss.eval()
    loss(x + 1, labels)
    assert (float(loss.scale), int(loss.seen)) == (float(kept), seen)


def test_two_steps_before_one_backward(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    x.requires_grad_()
    loss = build_loss("adacos", num_classes=9, embedding_size=16)
    sum(loss(x * k + 1, labels) for k in (1, 2, -1)).backward()
    assert x.grad.isfinite().all()


def test_a_resumed_run_goes_on(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    one, other = (build_loss("adacos", num_classes=9, embedding_size=16) for _ in range(2))
    for step in range(3):
        one(x + step, labels)
    other.load_state_dict(one.state_dict())
    for step in range(3):
        assert torch.equal(other(x - step, labels), one(x - step, labels))


@pytest.mark.parametrize("num_classes", [1, 2, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_few_classes_keep_a_positive_scale(build_loss, num_classes, sign):
    loss = build_loss("adacos", num_classes=num_classes)
    x = sign * loss.weight.detach()
    for _ in range(10):
        assert loss(x, torch.arange(num_classes)).isfinite()
        assert 1 <= float(loss.scale) < 10
