"""MagFace against loops through the angle, ArcFace at a bound, and the optimum of its reward."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError

BOUNDS = {"lower_norm": 2.0, "upper_norm": 9.0, "lower_margin": 20.0, "upper_margin": 50.0}


def loops(x, labels, weight, scale, reward):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = [(row / row.norm()) @ (w / w.norm()) for w in weight]
        a = row.norm()
        a = a if 2.0 < a < 9.0 else torch.tensor(2.0 if a <= 2.0 else 9.0).double()
        m = (20.0 + (50.0 - 20.0) * (a - 2.0) / (9.0 - 2.0)) * math.pi / 180
        angle = torch.acos(cosines[y])
        own = torch.cos(angle + m) if angle <= math.pi - m else cosines[y] - m * torch.sin(m)
        e = [torch.exp(scale * c) for c in cosines]
        e[y] = torch.exp(scale * own)
        terms.append(-torch.log(e[y] / sum(e)) + reward * (1 / a + a / 81))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("sizes", [[3, 1, 4, 9], [2, 2, 2]])
@pytest.mark.parametrize(("scale", "reward"), [(8.0, 35.0), (64.0, 0.0), (1.0, 1e3)])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, scale, reward):
    x, labels = make_batch(sizes, dim=3)
    x[0], x[1] = 0.2 * x[0], 3 * x[1]
    assert (x.norm(dim=1) < 2).any()
    assert (x.norm(dim=1) > 9).any()
    arguments = {"num_classes": 5, "embedding_size": 3, "scale": scale, "reward": reward}
    loss = build_loss("magface", **arguments, **BOUNDS).double()
    loss.weight.data[0] = -x[labels == 0].mean(0)  # some angles are beyond 180 - 50
    weight = loss.weight.detach()
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, weight, scale, reward), x), 1e-10)


def test_one_margin_and_no_reward_is_arcface(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    sizes = {"num_classes": 3, "embedding_size": 16}
    arcface = build_loss("arcface", **sizes, margin=30.0).double()
    mine = build_loss("magface", **sizes, lower_margin=30.0, upper_margin=30.0, reward=0.0)
    mine = mine.double()
    mine.weight.data = arcface.weight.data.clone()
    same(derive(lambda z: mine(z, labels), x), derive(lambda z: arcface(z, labels), x), 1e-12)


def test_the_reward_grows_up_to_the_upper_norm_and_no_further(build_loss):
    loss = build_loss("magface", lower_margin=0.0, upper_margin=0.0, reward=35.0)
    direction, label = torch.eye(4)[:1], torch.tensor([0])
    lengths = (5, 10, 20, 50, 109, 110, 200)
    values = [float(loss(a * direction, label).detach()) for a in lengths]
    assert values[0] == values[1] > values[2] > values[3] > values[4] > values[5] == values[6]


@pytest.mark.slow
def test_good_images_become_longer_than_bad_ones(build_loss):
    """The length for which an image has the least loss falls with its angle."""
    loss = build_loss("magface", reward=20.0).double()
    loss.weight.data = torch.eye(4).double()[:2]
    best = []
    for degrees in (5, 25, 40):
        t = math.radians(degrees)
        row = torch.tensor([[math.cos(t), math.sin(t), 0, 0]]).double()
        lengths = torch.linspace(10, 110, 201).double()
        values = torch.stack([loss(a * row, torch.tensor([0])) for a in lengths]).detach()
        best.append(float(lengths[values.argmin()]))
    assert best[0] > best[1] > best[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower_norm": 120.0}, "lower_norm must be below upper_norm, not 120.0 and 110.0"),
        ({"lower_norm": 0.0}, "lower_norm must be positive, not 0"),
        ({"upper_margin": 100.0}, "from 0 to 90 degrees, .* not 25.8 and 100"),
        ({"upper_margin": 20.0}, "the upper not the smaller, not 25.8 and 20"),
        ({"reward": -1.0}, "reward must be at least 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("magface", **arguments)
