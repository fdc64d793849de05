"""HIST against loops over images, classes and edges, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError
from zoo.registry import hooks


def cross_entropy(logits, labels):
    return sum(-torch.log_softmax(z, 0)[y] for z, y in zip(logits, labels, strict=True)) / len(
        labels
    )


def loops(x, labels, m, tau, alpha, weight):
    """The loss with the weights of a module."""
    y, classes = labels.tolist(), len(m.means)
    f = [row / row.norm() for row in x]
    distance = torch.zeros(len(y), classes).double()
    for i in range(len(y)):
        for c in range(classes):
            u = m.means[c] / m.means[c].norm()
            variance = torch.exp(m.log_variances[c].clamp(0, 6))
            distance[i, c] = sum((f[i] - u) ** 2 / variance)
    edges = sorted(set(y))
    h = torch.zeros(len(y), len(edges)).double()
    for i in range(len(y)):
        for e, c in enumerate(edges):
            h[i, e] = 1.0 if y[i] == c else torch.exp(-alpha * distance[i, c])
    g = torch.zeros(len(y), len(y)).double()
    for i in range(len(y)):
        for j in range(len(y)):
            shared = sum(h[i, e] * h[j, e] / h[:, e].sum() for e in range(len(edges)))
            g[i, j] = shared / torch.sqrt(h[i].sum() * h[j].sum())
    hidden = F.batch_norm(g @ m.first(x), None, None, m.gain, m.shift, training=True)
    logits = g @ m.second(F.leaky_relu(hidden, 0.1))
    return cross_entropy(-tau * distance, y) + weight * cross_entropy(logits, y)


@pytest.mark.parametrize("sizes", [[3, 1, 4], [2] * 5])
@pytest.mark.parametrize(("tau", "alpha", "weight"), [(32.0, 0.9, 1.0), (2.0, 4.0, 3.0)])
@pytest.mark.parametrize("hidden", [None, 7])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, tau, alpha, weight, hidden):
    x, labels = make_batch(sizes, dim=4)
    arguments = {"tau": tau, "alpha": alpha, "weight": weight, "hidden": hidden}
    loss = build_loss("hist", num_classes=6, embedding_size=4, **arguments).double()
    loss.gain.data += torch.linspace(-0.5, 0.5, len(loss.gain))
    loss.shift.data += torch.linspace(0.5, -0.5, len(loss.gain))
    loss.log_variances.data *= 8  # some are beyond the limits
    wanted = derive(lambda z: loops(z, labels, loss, tau, alpha, weight), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-9)
    (direct,) = torch.autograd.grad(loss(x, labels), loss.log_variances)
    (looped,) = torch.autograd.grad(loops(x, labels, loss, tau, alpha, weight), loss.log_variances)
    torch.testing.assert_close(direct, looped)


def test_with_variances_of_1_the_distances_are_euclidean(build_loss, make_batch, derive, same):
    """And the first term is the softmax of Proxy-NCA, with the positive in the sum."""
    x, labels = make_batch([3, 1, 4])
    sizes = {"num_classes": 4, "embedding_size": 16}
    proxies = build_loss("proxy_nca", **sizes, scale=5.0, include_positive=True).double()
    loss = build_loss("hist", **sizes, tau=5.0, weight=0.0).double()
    loss.means.data = proxies.proxies.data.clone()
    loss.log_variances.data[:] = -1.0  # at least 0 counts
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: proxies(z, labels), x), 1e-12)


def test_with_alpha_0_the_network_cannot_tell_the_images_apart(build_loss, make_batch):
    x, labels = make_batch([3, 3])
    loss = build_loss("hist", num_classes=2, embedding_size=16, alpha=0.0).double()
    loss.weight = 0.0
    without = loss(x, labels)
    loss.weight = 1.0
    assert float((loss(x, labels) - without).detach()) >= math.log(2) - 1e-12


@pytest.mark.parametrize("n", [1, 2])
def test_a_batch_of_hardly_any_images(build_loss, n):
    loss = build_loss("hist", num_classes=3)
    x = torch.ones(n, 4, requires_grad=True)
    value = loss(x, torch.arange(n))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


def test_evaluation_gives_the_same(build_loss, make_batch):
    x, labels = make_batch([3, 3])
    loss = build_loss("hist", num_classes=2, embedding_size=16).double()
    assert torch.equal(loss(x, labels), loss.eval()(x, labels))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.0}, "tau must be positive, not 0"),
        ({"alpha": -1.0}, "alpha must be at least 0, not -1"),
        ({"weight": -1.0}, "weight must be at least 0"),
        ({"distribution_lr": 0.0}, "distribution_lr must be positive"),
        ({"hidden": 0}, "hidden must be at least 1, not 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("hist", **arguments)


def test_the_distributions_have_a_learning_rate_of_their_own():
    loss = zoo.build("losses", "hist", num_classes=3, embedding_size=4, distribution_lr=30.0)
    factors = {id(p): f for group, f in hooks.parameter_groups(loss, "hist") for p in group}
    assert factors.pop(id(loss.means)) == factors.pop(id(loss.log_variances)) == 30.0
    assert len(factors) == 6
    assert set(factors.values()) == {1.0}
