"""DAML: the objective of each side in loops, the draw of triplets, and the fight of both sides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError
from zoo.losses._shared import masks
from zoo.losses._triplets import draw_triplets

WEIGHTS = {"margin": 0.5, "synthetic": 0.7, "regularity": 0.4, "adversary": 3.0}


def build(size=6, seed=0, **arguments):
    torch.manual_seed(seed)
    arguments = {"embedding_size": size, "hidden": 7, **WEIGHTS, **arguments}
    loss = zoo.build("losses", "daml", **arguments).double()
    torch.nn.init.normal_(loss.generator[-1].weight, std=0.3)  # as after some training
    return loss


def test_at_first_synthetic_negatives_are_the_real_ones(make_batch):
    x, labels = make_batch([3] * 3, dim=6)
    loss = zoo.build("losses", "daml", embedding_size=6, **WEIGHTS).double()
    real = call(build(synthetic=0.0), x, labels)
    torch.testing.assert_close(call(loss, x, labels), 1.7 * real)


def drawn(x, labels):
    """The triplets that a call draws: the same random numbers give the same."""
    torch.manual_seed(3)
    return draw_triplets(masks(x, labels, None, x, labels))


def call(loss, x, labels):
    torch.manual_seed(3)
    return loss(x, labels)


def generate(loss, triplet):
    """The three layers of the generator, written out."""
    x = torch.cat(triplet)
    for i in (0, 2, 4):
        layer = loss.generator[i]
        x = torch.stack([w @ x + b for w, b in zip(layer.weight, layer.bias, strict=True)])
        x = F.relu(x) if i < 4 else x
    return triplet[2] + x


def objectives(loss, x, labels):
    """The value of the embedding and the objective of the generator, triplet by triplet."""
    f, triplets = F.normalize(x), drawn(x, labels)
    of_embedding, of_generator, count = x.sum() * 0, x.sum() * 0, 0
    for a in range(len(x)):
        if not triplets.valid[a]:
            continue
        count += 1
        triplet = f[a], f[triplets.positive[a]], f[triplets.negative[a]]
        p, n = triplet[1:]
        g = generate(loss, triplet)
        u = g / g.norm()
        near, far, made = ((f[a] - y).square().sum() for y in (p, n, u))
        of_embedding = of_embedding + F.relu(near - far + loss.margin)
        of_embedding = of_embedding + loss.synthetic * F.relu(near - made + loss.margin)
        of_generator = of_generator + (g - f[a]).square().sum()
        of_generator = of_generator + loss.regularity * (g - n).square().sum()
        of_generator = of_generator + loss.adversary * F.relu(made - near - loss.margin)
    total = 1 + loss.regularity + loss.adversary
    return of_embedding / max(1, count), of_generator / max(1, count) / total


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [5], [1] * 4, [1]])
def test_each_side_has_the_gradient_of_its_own_objective(make_batch, derive, same, sizes):
    x, labels = make_batch(sizes, dim=6)
    loss = build()
    wanted = derive(lambda z: objectives(loss, z, labels)[0], x)
    same(derive(lambda z: call(loss, z, labels), x), wanted, 1e-12)
    parameters = list(loss.parameters())
    found = torch.autograd.grad(call(loss, x, labels), parameters, allow_unused=True)
    objective = objectives(loss, x, labels)[1]
    others = [torch.zeros_like(p) for p in parameters]
    if objective.requires_grad and objective != 0:
        others = torch.autograd.grad(objective, parameters)
        assert all(gradient.abs().max() > 1e-8 for gradient in others)
    torch.testing.assert_close(list(found), list(others))


def test_the_weight_of_synthetic_triplets_is_that_of_the_embedding_alone(make_batch):
    x, labels = make_batch([3] * 3, dim=6)
    values, of_generator = [], []
    for weight in (0.0, 1.0, 2.0):
        loss = build(synthetic=weight)
        values.append(call(loss, x, labels))
        values[-1].backward()
        of_generator.append([p.grad for p in loss.parameters()])
    torch.testing.assert_close(values[2] - values[1], values[1] - values[0])
    for other in of_generator[1:]:
        torch.testing.assert_close(other, of_generator[0], rtol=0, atol=0)


@pytest.mark.slow
def test_a_generator_that_learns_makes_negatives_that_violate_the_margin(make_batch):
    x, labels = make_batch([4] * 4, dim=6, spread=0.3)
    loss = build(adversary=50.0, regularity=0.1, synthetic=1.0)
    real = float(call(build(synthetic=0.0), x, labels).detach())
    values = []
    for _ in range(150):
        loss.zero_grad()
        value = call(loss, x.requires_grad_(), labels)
        value.backward()
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter -= 0.2 * parameter.grad
        values.append(float(value.detach()) - real)
    assert values[-1] > 3 * values[0]
    assert values[-1] > 3 * real  # much harder than the real negatives


def test_the_embedding_learns_through_the_generator(make_batch, derive):
    """The negative of a synthetic triplet has a gradient, though only G has seen it."""
    x, labels = make_batch([2, 1], dim=6)
    gradient = derive(lambda z: call(build(margin=4.0), z, labels), x)[1]
    other = derive(lambda z: call(build(margin=4.0, synthetic=0.0), z, labels), x)[1]
    alone = labels == 1
    assert (gradient - other)[alone].abs().max() > 1e-6


def test_triplets_are_of_the_right_classes_and_equally_likely():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    x = torch.zeros(6, 2)
    torch.manual_seed(0)
    counts = torch.zeros(6, 6)
    for _ in range(600):
        triplets = draw_triplets(masks(x, labels, None, x, labels))
        assert triplets.valid.tolist() == [True] * 5 + [False]
        for a in range(5):
            p, n = int(triplets.positive[a]), int(triplets.negative[a])
            assert p != a
            assert labels[p] == labels[a]
            assert labels[n] != labels[a]
            counts[a, p] += 1
            counts[a, n] += 1
    assert ((counts[0, 1:3] / 600 - 1 / 2).abs() < 0.08).all()
    assert ((counts[0, 3:] / 600 - 1 / 3).abs() < 0.08).all()


def test_the_random_numbers_are_those_of_torch(make_batch):
    x, labels = make_batch([4] * 4, dim=6)
    loss = build()
    assert call(loss, x, labels) == call(loss, x, labels)
    assert loss(x, labels) != call(loss, x, labels)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"margin": 0.0}, "margin must be positive"),
        ({"adversary": -1.0}, "adversary must be at least 0"),
        ({"hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
