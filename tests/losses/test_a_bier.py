"""Adversarial BIER: each of the two objectives has its own gradient, and each side does its job."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError

SIZES = [3, 5, 8]


def build(level_sizes=SIZES, seed=0, **arguments):
    torch.manual_seed(seed)
    arguments = {"diversity": 0.1, "hidden": 7, **arguments}
    return zoo.build("losses", "a_bier", level_sizes=list(level_sizes), **arguments).double()


def predicted(regressor, x):
    """The two layers of a regressor, written out."""
    first, _, second = regressor
    return F.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias


def similarity(loss, x, sizes=SIZES):
    """L_sim in loops over learners and images."""
    f = [F.normalize(part) * part.shape[1] ** 0.5 for part in x.split(list(sizes), 1)]
    total, regressors = 0, iter(loss.regressors)
    for i in range(len(f)):
        for j in range(i + 1, len(f)):
            guess = predicted(next(regressors), f[j])
            images = [(f[i][n] * guess[n]).square().mean() for n in range(len(x))]
            total = total + torch.stack(images).mean()
    return total


def weight_loss(loss):
    total = 0
    for regressor in loss.regressors:
        for layer in (regressor[0], regressor[2]):
            rows = torch.stack([row @ row for row in layer.weight])
            total = total + ((rows - 1) ** 2).mean()
            total = total + F.relu(layer.bias @ layer.bias - 1)
    return total


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [5], [1] * 4, [1]])
def test_the_embedding_hides_and_the_value_says_how_well(make_batch, derive, same, sizes):
    x, labels = make_batch(sizes)
    loss = build()
    plain = zoo.build("losses", "bier", level_sizes=SIZES, diversity=0.0)

    def wanted(z):
        return plain(z, labels) + 0.1 * similarity(loss, z)

    same(derive(lambda z: loss(z, labels), x), derive(wanted, x), 1e-12)


@pytest.mark.parametrize("weight_penalty", [0.0, 3.0])
def test_the_regressors_seek(make_batch, weight_penalty):
    x, labels = make_batch([2, 4, 1])
    loss = build(weight_penalty=weight_penalty)
    with torch.no_grad():
        loss.regressors[0][0].bias += 1.0  # beyond the length of 1 that is free
    loss(x, labels).backward()
    objective = weight_penalty * weight_loss(loss) - similarity(loss, x)
    objective = objective / (1 + weight_penalty)
    parameters = list(loss.regressors.parameters())
    wanted = torch.autograd.grad(objective, parameters)
    assert len(parameters) == 12
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-6


def test_in_float32_the_gradient_is_nearly_the_same(make_batch):
    x, labels = make_batch([2, 4, 1])
    found = []
    for dtype in (torch.float64, torch.float32):
        loss, z = build().to(dtype), x.to(dtype, copy=True).requires_grad_()
        loss(z, labels).backward()
        found.append([z.grad.double(), *(p.grad.double() for p in loss.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-4 * one.norm()


@pytest.mark.slow
def test_descent_of_both_sides(make_batch):
    """Regressors that learn alone find more; an embedding that learns too can be found less."""
    x, _ = make_batch([4] * 4)
    x[:, 3:6] = x[:, :3]  # the second learner has all that the first one has
    found = {}
    for hides in (False, True):
        loss, z = build(diversity=1.0, weight_penalty=10.0), x.clone().requires_grad_()
        before = float(similarity(loss, z).detach())
        for _ in range(200):
            loss.zero_grad()
            z.grad = None
            parts = loss.levels(z)
            ((total, number),) = loss.independence(parts, parts)
            (total / number).backward()
            with torch.no_grad():
                for parameter in loss.parameters():
                    parameter -= 2e-2 * parameter.grad
                if hides:
                    z -= 5 * z.grad
        found[hides] = (before, float(similarity(loss, z).detach()))
    assert found[False][1] > 1.5 * found[False][0]
    assert found[True][1] < 0.3 * found[False][1]


def test_without_its_part_it_is_boosting_alone(make_batch, derive, same):
    x, labels = make_batch([3, 4, 2])
    plain = zoo.build("losses", "bier", level_sizes=SIZES, diversity=0.0)
    wanted = derive(lambda z: plain(z, labels), x)
    same(derive(lambda z: build(diversity=0.0)(z, labels), x), wanted, 0)
    one = zoo.build("losses", "bier", level_sizes=[16], diversity=0.0)
    wanted = derive(lambda z: one(z, labels), x)
    same(derive(lambda z: build([16])(z, labels), x), wanted, 0)


def test_the_regressors_are_learned_saved_and_drawn_from_the_seed():
    a, b, other = build(), build(), build(seed=1)
    assert len(a.regressors) == 3
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name])
    other.load_state_dict(a.state_dict())
    x, labels = torch.randn(6, 16).double(), torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.equal(other(x, labels), a(x, labels))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"weight_penalty": -1.0}, "at least 0"), ({"hidden": 0}, "hidden must be at least 1")],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
