"""ProxyGML against loops over subgraphs, and its limits."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def cross_entropy(logits, own):
    """Return -log of the share of one class; logits {class: value}."""
    return -torch.log(torch.exp(logits[own]) / sum(torch.exp(z) for z in logits.values()))


def loops(x, labels, proxies, number, weight, scale):
    p = proxies / proxies.norm(dim=2, keepdim=True)
    places = [(c, k) for c in range(len(p)) for k in range(len(p[0]))]
    images = []
    for row, y in zip(x / x.norm(dim=1, keepdim=True), labels.tolist(), strict=True):
        cosine = {(c, k): row @ p[c, k] for c, k in places}
        ranked = sorted(places, key=lambda at: (at[0] != y, -float(cosine[at].detach())))
        logits = {}
        for at in ranked[:number]:
            logits[at[0]] = logits.get(at[0], 0) + scale * cosine[at]
        images.append(cross_entropy(logits, y))
    spread = []
    for c, k in places:
        logits = {other: sum(p[c, k] @ q for q in p[other]) for other in range(len(p))}
        spread.append(cross_entropy(logits, c))
    return sum(images) / len(images) + weight * sum(spread) / len(spread)


@pytest.mark.parametrize("sizes", [[3, 1, 4], [2] * 5])
@pytest.mark.parametrize(
    ("ratio", "number", "per_class", "weight", "scale"),
    [(0.5, 8, 3, 0.3, 1.0), (1.0, 15, 3, 2.0, 4.0), (0.01, 4, 2, 0.0, 1.0), (0.61, 4, 1, 0.3, 20)],
)
def test_equals_the_loops(
    build_loss, make_batch, derive, same, sizes, ratio, number, per_class, weight, scale
):
    x, labels = make_batch(sizes, dim=4)
    arguments = {"proxies_per_class": per_class, "ratio": ratio, "weight": weight, "scale": scale}
    loss = build_loss("proxy_gml", num_classes=5, embedding_size=4, **arguments).double()
    proxies = loss.proxies.detach().clone()
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, proxies, number, weight, scale), x), 1e-12)
    loss(x, labels).backward()
    _, wanted = derive(lambda p: loops(x, labels, p, number, weight, scale), proxies)
    torch.testing.assert_close(loss.proxies.grad, wanted)


def test_one_proxy_and_all_in_the_subgraph_is_a_softmax_of_cosines(
    build_loss, make_batch, derive, same
):
    x, labels = make_batch([3, 1, 4])
    sizes = {"num_classes": 5, "embedding_size": 16}
    softmax = build_loss("normface", **sizes, scale=20.0).double()
    arguments = {"proxies_per_class": 1, "ratio": 1.0, "weight": 0.0, "scale": 20.0}
    loss = build_loss("proxy_gml", **sizes, **arguments).double()
    loss.proxies.data = softmax.weight.data[:, None].clone()
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: softmax(z, labels), x), 1e-12)


def test_proxies_outside_the_subgraph_do_not_learn(build_loss):
    arguments = {"proxies_per_class": 1, "ratio": 0.01, "weight": 0.0}
    loss = build_loss("proxy_gml", num_classes=4, embedding_size=4, **arguments)
    loss.proxies.data = torch.eye(4)[:, None].clone()
    loss(torch.tensor([[0.1, 0.2, 0.9, 0.3]]), torch.tensor([1])).backward()
    learns = loss.proxies.grad.abs().sum((1, 2)) > 0
    assert learns.tolist() == [False, True, True, False]


def test_the_spread_of_proxies_that_are_one(build_loss):
    loss = build_loss("proxy_gml", num_classes=4, embedding_size=4)
    loss.proxies.data[:] = 1
    x = torch.ones(1, 4)
    loss.weight = 0.0
    without = float(loss(x, torch.tensor([0])).detach())
    loss.weight = 1.0
    value = float(loss(x, torch.tensor([0])).detach())
    assert value - without == pytest.approx(math.log(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"proxies_per_class": 0}, "proxies_per_class must be at least 1, not 0"),
        ({"ratio": 0.0}, "ratio must be above 0 and at most 1, not 0"),
        ({"ratio": 1.5}, "ratio must be above 0 and at most 1, not 1.5"),
        ({"weight": -1.0}, "weight must be at least 0"),
        ({"scale": 0.0}, "scale must be positive"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("proxy_gml", **arguments)
