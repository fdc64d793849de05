"""The Group Loss against loops over images and classes, and its limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError


def loops(x, labels, m, anchors):
    """The loss with the weights of a module; anchors are the drawn images."""
    y, n, classes = labels.tolist(), len(labels), m.num_classes
    logits = x @ m.classifier.weight.T + m.classifier.bias
    r = [[torch.corrcoef(torch.stack([a, b]))[0, 1] for b in x] for a in x]
    p = []
    for i in range(n):
        row = torch.softmax(logits[i] / m.temperature, 0)
        p.append(F.one_hot(labels[i], classes).double() if i in anchors else row)
    for _ in range(m.iterations):
        refined = []
        for i in range(n):
            support = torch.zeros(classes).double()
            for j in range(n):
                if i == j or r[i][j] > 0:
                    support = support + (1 if i == j else r[i][j]) * p[j]
            refined.append(p[i] * support / (p[i] * support).sum())
        p = refined
    first = sum(-torch.log(p[i][y[i]]) for i in range(n)) / n
    return m.weight * first + F.cross_entropy(logits, labels)


def drawn(labels, number):
    from zoo.losses.group_loss import _draw

    torch.manual_seed(0)
    found = set(_draw(labels, number).nonzero().flatten().tolist())
    torch.manual_seed(0)
    return found


@pytest.mark.parametrize("sizes", [[4, 1, 3], [3] * 3])
@pytest.mark.parametrize(
    ("iterations", "anchors", "temperature", "weight"),
    [(1, 1, 24.0, 1.0), (3, 2, 1.0, 0.5), (2, 0, 5.0, 1.0), (0, 1, 2.0, 1.0)],
)
def test_equals_the_loops(
    build_loss, make_batch, derive, same, sizes, iterations, anchors, temperature, weight
):
    x, labels = make_batch(sizes, dim=5)
    arguments = {"iterations": iterations, "anchors": anchors, "temperature": temperature}
    sizes = {"num_classes": 4, "embedding_size": 5}
    loss = build_loss("group_loss", **sizes, **arguments, weight=weight).double()
    loss.classifier.weight.data *= 20
    which = drawn(labels, anchors)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, loss, which), x), 1e-10)


def test_it_draws_some_images_of_each_class_at_random():
    labels = torch.tensor([0, 5, 0, 5, 0, 5, 7, 0])
    for number in range(5):
        found = drawn(labels, number)
        counts = [sum(int(labels[i]) == c for i in found) for c in (0, 5, 7)]
        assert counts == [min(number, 4), min(number, 3), min(number, 1)]
    from zoo.losses.group_loss import _draw

    torch.manual_seed(0)
    assert torch.stack([_draw(labels, 1) for _ in range(100)]).any(0).all()


def test_if_all_are_anchors_only_the_classifier_learns(build_loss, make_batch, derive, same):
    x, labels = make_batch([2, 2, 1])
    loss = build_loss("group_loss", num_classes=3, embedding_size=16).double()
    plain = derive(lambda z: F.cross_entropy(loss.get_logits(z), labels), x)
    same(derive(lambda z: loss(z, labels), x), plain, 1e-12)


def test_neighbours_decide_for_an_image_without_an_opinion(build_loss):
    """An image that is like the anchor of its class becomes more probable in each iteration."""
    x = torch.tensor([[1.0, 0, 0, 0], [0.9, 0.3, 0, 0], [0, 0, 1, 0.2]]).double()
    labels = torch.tensor([0, 0, 1])
    values = []
    for iterations in (0, 1, 2, 5):
        loss = build_loss("group_loss", anchors=1, iterations=iterations).double()
        loss.classifier.weight.data[:] = 0
        torch.manual_seed(0)
        values.append(float(loss(x, labels).detach()))
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] + 0.15


def test_a_hopeless_image_still_has_a_gradient(build_loss):
    """Its probability, exp(-300), is 0 in float32."""
    loss = build_loss("group_loss", anchors=0, temperature=1.0, iterations=2)
    loss.classifier.weight.data = torch.tensor([[300.0, 0, 0, 0], [0, 0, 0, 0]])
    x = torch.tensor([[1.0, 0, 0, 0]], requires_grad=True)
    loss(x, torch.tensor([1])).backward()
    alone = float(x.grad.norm())
    loss.weight = 0.0
    x.grad = None
    loss(x, torch.tensor([1])).backward()
    assert alone > 1.5 * float(x.grad.norm())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iterations": -1}, "iterations must be at least 0, not -1"),
        ({"anchors": -1}, "anchors must be at least 0, not -1"),
        ({"temperature": 0.0}, "temperature must be positive, not 0"),
        ({"weight": -1.0}, "weight must be at least 0, not -1"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("group_loss", **arguments)
