"""CurricularFace against loops that follow t, and ArcFace."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def cosines_of(row, weight):
    return [(row / row.norm()) @ (w / w.norm()) for w in weight]


def loops(x, labels, weight, scale, degrees, t):
    m, terms = math.radians(degrees), []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = cosines_of(row, weight)
        angle = torch.acos(cosines[y])
        own = torch.cos(angle + m) if angle <= math.pi - m else cosines[y] - m * math.sin(m)
        e = []
        for c, cosine in enumerate(cosines):
            hard = cosine * (t + cosine) if cosine > own else cosine
            e.append(torch.exp(scale * (own if c == y else hard)))
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("scale", [4.0, 64.0])
@pytest.mark.parametrize("rate", [0.01, 0.6])
def test_four_batches_equal_the_loops(build_loss, make_batch, derive, same, scale, rate):
    sizes = {"num_classes": 6, "embedding_size": 4}
    loss = build_loss("curricularface", **sizes, scale=scale, rate=rate).double()
    weight, t = loss.weight.detach(), 0.0
    for step in range(4):
        x, labels = make_batch([3, 1, 4, 9] if step % 2 else [2] * 6, dim=4, seed=step)
        wanted = derive(lambda z: loops(z, labels, weight, scale, 28.6, t), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-10)  # noqa: B023
        own = [float(cosines_of(r, weight)[y]) for r, y in zip(x, labels.tolist(), strict=True)]
        t = rate * sum(own) / len(own) + (1 - rate) * t
        assert float(loss.t) == pytest.approx(t)
    assert t != 0


def test_without_hard_classes_it_is_arcface(build_loss, derive, same):
    loss, arcface = build_loss("curricularface").double(), build_loss("arcface").double()
    x, labels = torch.eye(4).double()[:2] + 0.1, torch.tensor([0, 1])
    loss.weight.data = arcface.weight.data = torch.eye(4).double()[:2]
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: arcface(z, labels), x), 1e-12)
    swapped = labels.flip(0)  # now the other class is nearer
    assert loss(x, swapped) < arcface(x, swapped)
    loss.t.fill_(2.0)
    assert loss(x, swapped) > arcface(x, swapped)


def test_evaluation_keeps_t(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    loss = build_loss("curricularface", num_classes=5, embedding_size=16)
    loss(x, labels)
    kept = float(loss.t)
    loss.eval()
    loss(x + 1, labels)
    assert float(loss.t) == kept != 0


def test_two_steps_before_one_backward(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    x.requires_grad_()
    loss = build_loss("curricularface", num_classes=5, embedding_size=16)
    sum(loss(x * k + 1, labels) for k in (1, 2, -1)).backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"margin": 100.0}, "margin must be from 0 to 90 degrees, not 100"),
        ({"rate": 2.0}, "rate must be from 0 to 1, not 2"),
        ({"scale": 0.0}, "scale must be positive, not 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("curricularface", **arguments)
