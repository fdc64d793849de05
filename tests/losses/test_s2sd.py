"""S2SD against loops, who teaches whom, and its limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError

SIZES = [4, 6]


def build(level_sizes=SIZES, seed=0, **arguments):
    torch.manual_seed(seed)
    arguments = {"targets": [5, 9], "weight": 3.0, **arguments}
    return zoo.build("losses", "s2sd", level_sizes=list(level_sizes), **arguments).double()


def target(network, h):
    first, _, second = network
    return F.relu(h @ first.weight.T + first.bias) @ second.weight.T + second.bias


def divergence(teacher, pupil, temperature):
    total = 0
    for row in range(len(teacher)):
        p = (F.cosine_similarity(teacher[row], teacher, dim=1) / temperature).softmax(0).detach()
        q = (F.cosine_similarity(pupil[row], pupil, dim=1) / temperature).softmax(0)
        total = total + (p * (p / q).log()).sum()
    return temperature**2 * total / len(teacher)


def loops(loss, metric, x, labels, weight=3.0, temperature=1.0, feature_weight=0.0):
    f, h = x[:, : loss.level_sizes[0]], x[:, -loss.level_sizes[-1] :]
    targets = [target(network, h) for network in loss.targets]
    total = metric(f, labels) / 2
    for t in targets:
        total = total + metric(t, labels) / 2 / len(targets)
        total = total + weight * divergence(t, f, temperature) / len(targets)
    return total + feature_weight * divergence(h, f, temperature)


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [5], [1] * 4, [1]])
@pytest.mark.parametrize("levels", [SIZES, [10]])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.3, "feature_weight": 2.0}])
def test_value_and_gradients_equal_the_loops(
    make_batch, derive, same, build_loss, sizes, levels, settings
):
    x, labels = make_batch(sizes, dim=sum(levels))
    loss, metric = build(levels, **settings), build_loss("multi_similarity")
    wanted = derive(lambda z: loops(loss, metric, z, labels, **settings), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    parameters = list(loss.parameters())
    found = torch.autograd.grad(loss(x, labels), parameters)
    others = torch.autograd.grad(loops(loss, metric, x, labels, **settings), parameters)
    torch.testing.assert_close(found, others)


def test_the_targets_learn_only_from_their_own_loss(make_batch, build_loss):
    x, labels = make_batch([3] * 3, dim=10)
    loss, metric = build(weight=1000.0), build_loss("multi_similarity")
    parameters = list(loss.targets.parameters())
    found = torch.autograd.grad(loss(x, labels), parameters)
    own = sum(metric(target(network, x[:, 4:]), labels) for network in loss.targets) / 4
    torch.testing.assert_close(found, torch.autograd.grad(own, parameters))


def test_the_features_are_not_taught_but_the_embedding_is(make_batch, derive):
    x, labels = make_batch([3] * 3, dim=10)
    gradients = [derive(lambda z, w=w: build(weight=w)(z, labels), x)[1] for w in (0.0, 50.0)]
    torch.testing.assert_close(gradients[0][:, 4:], gradients[1][:, 4:])
    assert (gradients[0] - gradients[1])[:, :4].abs().max() > 1e-3


@pytest.mark.slow
def test_distillation_brings_the_similarities_to_those_of_the_teacher(make_batch, derive):
    x, _ = make_batch([3] * 3, dim=10)
    loss = build(targets=[9], weight=1.0, temperature=0.5)
    teacher = target(loss.targets[0], x[:, 4:]).detach()
    before = float(divergence(teacher, x[:, :4], 0.5))
    for _ in range(300):
        value, gradient = derive(lambda z: loss._divergence(teacher, z), x[:, :4])
        x = torch.cat([x[:, :4] - 20 * gradient, x[:, 4:]], 1)
    assert float(value) < 0.5 * before
    assert float(value) == pytest.approx(float(divergence(teacher, x[:, :4], 0.5)), abs=1e-3)


def test_distillation_from_the_embedding_itself_is_nothing(make_batch, derive, same):
    x, labels = make_batch([3] * 3, dim=10)
    with_features, without = build([10], feature_weight=9.0), build([10])
    wanted = derive(lambda z: without(z, labels), x)
    same(derive(lambda z: with_features(z, labels), x), wanted, 1e-12)


def test_another_loss(make_batch, build_loss):
    x, labels = make_batch([3] * 3, dim=10)
    metric = build_loss("contrastive")
    loss = build(loss=build_loss("contrastive"))
    torch.testing.assert_close(loss(x, labels), loops(loss, metric, x, labels))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"targets": []}, "targets must be one or more sizes"),
        ({"targets": [4, 0]}, "targets must be one or more sizes"),
        ({"weight": -1.0}, "weight must be at least 0"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)


def test_a_loss_with_weights_is_refused(build_loss):
    with pytest.raises(UserError, match="ProxyNCALoss has weights of one size"):
        build(loss=build_loss("proxy_nca"))
