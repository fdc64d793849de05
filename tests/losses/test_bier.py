"""BIER against loops, its learners one by one, and what boosting and independence do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError
from zoo.losses.bier import _relative_power

SIZES = [3, 5, 8]


def build(level_sizes=SIZES, **arguments):
    return zoo.build("losses", "bier", level_sizes=list(level_sizes), **arguments)


def loops(x, labels, sizes=SIZES, boosting=True, diversity=0.01, alpha=2.0, beta=0.5, cost=25.0):
    """Algorithm 1 pair by pair, with the learners' weights as constants."""
    y, n = labels.tolist(), len(labels)
    f = x.split(list(sizes), 1)
    cosines = [F.normalize(g) @ F.normalize(g).T for g in f]
    total = 0
    for m in range(len(f)):
        terms = {True: [], False: []}
        for a in range(n):
            for b in range(n):
                if a == b:
                    continue
                same = y[a] == y[b]
                s = [float(c[a, b].detach()) for c in cosines[:m]]
                mixed = 0.0  # the average over the learners before, learner k with weight k
                if m:
                    mixed = sum((k + 1) * s[k] for k in range(m)) / (m * (m + 1) / 2)
                sign = alpha if same else -alpha * cost
                weight = 1.0
                if m and boosting:
                    weight = 1 / (1 + math.exp(sign * (mixed - beta)))
                now = sign * (cosines[m][a, b] - beta)
                terms[same].append(weight * torch.log1p(torch.exp(-now)))
        total = total + sum(torch.stack(t).mean() for t in terms.values() if t) / len(f)
    for m in range(len(f)):
        for k in range(m):
            for i in range(n):
                power = [(g[i] ** 2 / (g**2).mean(0)).mean() for g in (f[m], f[k])]
                total = total + diversity * power[0] * power[1] / n
    return total


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [4], [1] * 4])
@pytest.mark.parametrize("settings", [{}, {"diversity": 2.0, "boosting": False}, {"alpha": 1.0}])
def test_value_and_gradient_equal_the_loops(make_batch, derive, same, sizes, settings):
    x, labels = make_batch(sizes)
    loss = build(**settings)
    wanted = derive(lambda z: loops(z, labels, **settings), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    assert wanted[1].abs().max() > 1e-6


def test_one_learner_is_binomial_deviance(make_batch, derive, same, build_loss):
    x, labels = make_batch([3, 4, 2])
    plain = build_loss("binomial_deviance")
    wanted = derive(lambda z: plain(z, labels), x)
    same(derive(lambda z: build([16])(z, labels), x), wanted, 1e-14)


def test_without_boosting_it_is_the_mean_of_the_learners(make_batch, derive, same, build_loss):
    x, labels = make_batch([3, 4, 2])
    plain = build_loss("binomial_deviance")
    loss = build(boosting=False, diversity=0.0)
    wanted = derive(lambda z: sum(plain(f, labels) for f in z.split(SIZES, 1)) / 3, x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-14)


def test_a_learner_is_not_trained_by_the_weights_of_later_ones(make_batch, derive):
    """The first learner's gradient is that of plain binomial deviance, whatever comes later."""
    x, labels = make_batch([3, 4, 2])
    _, gradient = derive(lambda z: build(diversity=0.0)(z, labels), x)
    _, plain = derive(lambda z: build(diversity=0.0, boosting=False)(z, labels), x)
    torch.testing.assert_close(gradient[:, :3], plain[:, :3])
    assert (gradient[:, 3:] - plain[:, 3:]).abs().max() > 1e-3


def gradient_of_second(first, derive, labels):
    """Return the norm of the gradient of a second learner after a given first one."""
    second = torch.tensor([[1.0, 0.2], [0.4, 1.0], [1.0, -0.5], [0.3, 0.8]], dtype=torch.float64)
    x = torch.cat([first, second], 1)
    loss = build([first.shape[1], 2], diversity=0.0, negative_cost=1.0)
    return derive(lambda z: loss(z, labels), x)[1][:, -2:].norm()


def test_a_later_learner_learns_from_what_the_first_gets_wrong(derive):
    labels = torch.tensor([0, 0, 1, 1])
    right = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]]).double()
    wrong = right[[0, 2, 0, 2]]
    learns = [gradient_of_second(first, derive, labels) for first in (right, wrong)]
    assert learns[1] > 3 * learns[0] > 0


def test_the_relative_power_has_mean_one_and_does_not_see_the_scale_of_a_column(make_batch):
    x, _ = make_batch([3, 4, 2])
    power = _relative_power(x, x)
    assert float(power.mean()) == pytest.approx(1)
    scaled = x * torch.logspace(-20, 20, 16, dtype=torch.float64)
    torch.testing.assert_close(_relative_power(scaled, scaled), power)


def test_independence_is_least_for_learners_that_are_active_on_different_images():
    labels = torch.arange(4)
    both = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    values = {}
    for name, x in {"both": both, "apart": apart, "all": torch.ones(4, 2)}.items():
        loss = [build([1, 1], diversity=d) for d in (1.0, 0.0)]
        values[name] = float(loss[0](x, labels) - loss[1](x, labels))
    assert values == pytest.approx({"both": 2.0, "apart": 0.0, "all": 1.0}, abs=1e-6)


@pytest.mark.slow
def test_descent_on_independence_lowers_it(make_batch, derive):
    x, labels = make_batch([1] * 9)
    loss, plain = build(diversity=1.0), build(diversity=0.0)
    values = []
    for _ in range(50):
        value, gradient = derive(lambda z: loss(z, labels) - plain(z, labels), x)
        x = x - 20 * gradient
        values.append(float(value))
    assert values[-1] < 0.8 * values[0]


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [3, 3, 1]])
@pytest.mark.parametrize("rows", ["equal", "zero", "one zero column", "huge"])
def test_unusual_batches_are_finite(labels, rows):
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    if rows == "equal":
        x = x[:1].repeat(3, 1)
    elif rows == "zero":
        x = x * 0
    elif rows == "one zero column":
        x[:, 4] = 0
    else:
        x = x * 1e30
    x = x.requires_grad_()
    value = build()(x, torch.tensor(labels))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()


def test_embeddings_of_another_size_are_refused():
    with pytest.raises(UserError, match="embeddings have 7 numbers, but this loss was built for 1"):
        build()(torch.ones(2, 7), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "arguments",
    [{"level_sizes": []}, {"level_sizes": [4, 0]}, {"alpha": 0.0}, {"negative_cost": -1.0}],
)
def test_impossible_arguments(arguments):
    with pytest.raises(UserError, match="must be"):
        zoo.build("losses", "bier", **{"level_sizes": [2], **arguments})


def test_a_negative_weight_of_independence_is_refused():
    with pytest.raises(UserError, match="diversity must be at least 0"):
        build(diversity=-0.1)
