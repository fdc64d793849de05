"""AdaFace against loops that follow the lengths, ArcFace and CosFace."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def loops(x, labels, weight, quality, scale, m):
    terms = []
    for row, y, q in zip(x, labels.tolist(), quality, strict=True):
        cosines = [(row / row.norm()) @ (w / w.norm()) for w in weight]
        angle = torch.acos(cosines[y]) - m * q
        if angle < 0:
            own = torch.ones(()).double()
        elif angle <= math.pi:
            own = torch.cos(angle)
        else:
            own = cosines[y] + m * q * math.sin(-m * q)
        e = [torch.exp(scale * c) for c in cosines]
        e[y] = torch.exp(scale * (own - m * q - m))
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


def qualities(x, mean, deviation, h):
    norms = [math.sqrt(sum(float(v) ** 2 for v in row)) for row in x]
    return [max(-1.0, min(1.0, (n - mean) / ((deviation + 1e-3) / h))) for n in norms]


@pytest.mark.parametrize(("scale", "margin"), [(8.0, 1.2), (64.0, 0.4)])
@pytest.mark.parametrize(("rate", "h"), [(0.01, 0.333), (0.8, 0.5), (1.0, 5.0)])
def test_four_batches_equal_the_loops(build_loss, make_batch, derive, same, scale, margin, rate, h):
    arguments = {"num_classes": 6, "embedding_size": 4, "scale": scale, "margin": margin}
    loss = build_loss("adaface", **arguments, rate=rate, concentration=h).double()
    mean, deviation = 20.0, 100.0
    seen = []
    for step in range(4):
        x, labels = make_batch([3, 1, 4, 9] if step % 2 else [2] * 6, dim=4, seed=step)
        loss.weight.data[0] = -x[labels == 0].mean(0)  # some angles are near 180 degrees
        loss.weight.data[1] = x[labels == 1].mean(0) + 0.1  # and some near 0
        norms = x.norm(dim=1)
        mean = rate * float(norms.mean()) + (1 - rate) * mean
        spread = math.sqrt(sum((float(n) - float(norms.mean())) ** 2 for n in norms))
        deviation = rate * spread / math.sqrt(len(x) - 1) + (1 - rate) * deviation
        q = qualities(x, mean, deviation, h)
        seen += q
        weight = loss.weight.detach().clone()
        wanted = derive(lambda z: loops(z, labels, weight, q, scale, margin), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-9)  # noqa: B023
        assert float(loss.mean) == pytest.approx(mean)
        assert float(loss.deviation) == pytest.approx(deviation)
    if h == 5.0:
        assert {-1.0, 1.0} < set(seen)


@pytest.mark.parametrize(("length", "name"), [(1e-2, "arcface"), (5.0, "cosface")])
def test_low_quality_is_arcface_and_mean_quality_cosface(
    build_loss, make_batch, derive, same, length, name
):
    x, labels = make_batch([3, 1, 4])
    x = length * x / x.norm(dim=1, keepdim=True)
    sizes = {"num_classes": 3, "embedding_size": 16}
    margin = {"arcface": math.degrees(0.4), "cosface": 0.4}[name]
    other = build_loss(name, **sizes, margin=margin).double()
    loss = build_loss("adaface", **sizes).double().eval()
    loss.mean.fill_(5.0)
    loss.deviation.fill_(0.5)
    weight = other.weight if name == "arcface" else other.pml.W
    loss.weight.data = weight.data.clone() if name == "arcface" else weight.data.T.clone()
    wanted = derive(lambda z: other(z, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-9)


def test_the_gradient_leaves_the_length_alone(build_loss, make_batch, derive):
    x, labels = make_batch([3, 1, 4])
    loss = build_loss("adaface", num_classes=3, embedding_size=16, rate=1.0).double()
    _, gradient = derive(lambda z: loss(z, labels), x)
    assert gradient.norm(dim=1).min() > 1e-6
    assert (gradient * x).sum(1).abs().max() < 1e-10


def test_evaluation_keeps_the_averages(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    loss = build_loss("adaface", num_classes=5, embedding_size=16)
    loss(x, labels)
    kept = (float(loss.mean), float(loss.deviation))
    assert kept != (20.0, 100.0)
    loss.eval()
    loss(x + 1, labels)
    assert (float(loss.mean), float(loss.deviation)) == kept


def test_one_image_has_no_deviation(build_loss):
    loss = build_loss("adaface", rate=1.0)
    assert loss(torch.ones(1, 4), torch.tensor([1])).isfinite()
    assert (float(loss.mean), float(loss.deviation)) == (2.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"margin": 28.6}, "margin must be from 0 to 1.57, not 28.6"),
        ({"rate": 2.0}, "rate must be from 0 to 1, not 2"),
        ({"concentration": 0.0}, "concentration must be positive, not 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("adaface", **arguments)
