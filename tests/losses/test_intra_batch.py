"""Intra-batch connections against loops over images and heads, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError


def cross_entropy(logits, labels, temperature, smoothing):
    terms = []
    for z, y in zip(logits, labels.tolist(), strict=True):
        logs = torch.log_softmax(z / temperature, 0)
        terms.append(-(1 - smoothing) * logs[y] - smoothing * logs.mean())
    return sum(terms) / len(terms)


def attention(h, layer):
    """The messages that each image receives, head by head."""
    n, d = h.shape
    size = d // layer.heads
    received = []
    for i in range(n):
        of_heads = []
        for head in range(layer.heads):
            own = slice(head * size, (head + 1) * size)
            query = layer.query(h[i])[own]
            scores = torch.stack([query @ layer.key(h[j])[own] for j in range(n)])
            shares = torch.softmax(scores / math.sqrt(size), 0)
            of_heads.append(sum(shares[j] * layer.message(h[j])[own] for j in range(n)))
        received.append(layer.out(torch.cat(of_heads)))
    return torch.stack(received)


def loops(x, labels, m):
    h = m.input(F.normalize(x))
    for layer in m.passes:
        h = layer.first_norm(h + attention(h, layer))
        h = layer.second_norm(h + layer.narrow(torch.relu(layer.wide(h))))
    h = F.batch_norm(h, None, None, m.gain, None, training=True)
    arguments = (labels, m.temperature, m.smoothing)
    alone = cross_entropy(m.classifier(x), *arguments)
    return cross_entropy(m.of_messages(h), *arguments) + m.weight * alone


@pytest.mark.parametrize("sizes", [[3, 1, 4], [2] * 3])
@pytest.mark.parametrize(
    ("layers", "heads", "temperature", "smoothing", "weight"),
    [(1, 2, 0.2, 0.1, 1.0), (2, 1, 1.0, 0.0, 0.3), (1, 6, 0.5, 0.3, 2.0)],
)
def test_equals_the_loops(
    build_loss, make_batch, derive, same, sizes, layers, heads, temperature, smoothing, weight
):
    x, labels = make_batch(sizes, dim=6)
    arguments = {"layers": layers, "heads": heads, "temperature": temperature}
    arguments |= {"smoothing": smoothing, "weight": weight, "dropout": 0.0}
    loss = build_loss("intra_batch", num_classes=4, embedding_size=6, **arguments).double()
    loss.of_messages.weight.data *= 30
    loss.gain.data += torch.linspace(-0.5, 0.5, 6)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, loss), x), 1e-10)


def test_without_dropout_the_order_does_not_matter(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4], dim=6)
    loss = build_loss("intra_batch", num_classes=4, embedding_size=6, dropout=0.0).double()
    value, gradient = derive(lambda z: loss(z, labels), x)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    same(derive(lambda z: loss(z, labels[order]), x[order]), (value, gradient[order]), 1e-12)


def test_dropout_is_random_and_ends_with_evaluation(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4], dim=6)
    sizes = {"num_classes": 4, "embedding_size": 6}
    loss = build_loss("intra_batch", **sizes, dropout=0.5).double()
    assert loss(x, labels) != loss(x, labels)
    without = build_loss("intra_batch", **sizes, dropout=0.0).double()
    without.load_state_dict(loss.state_dict())
    torch.testing.assert_close(loss.eval()(x, labels), without(x, labels))


def test_dropout_keeps_the_mean():
    from zoo.losses.intra_batch import _drop

    torch.manual_seed(0)
    dropped = _drop(torch.ones(100_000), 0.3)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)
    assert float((dropped == 0).double().mean()) == pytest.approx(0.3, abs=0.01)


def test_an_image_hears_the_others(build_loss, make_batch):
    """The gradient of one image's class reaches the embeddings of all."""
    x, _ = make_batch([3, 1, 4], dim=6)
    loss = build_loss("intra_batch", num_classes=4, embedding_size=6, weight=0.0).double().eval()
    h = loss.passes[0](loss.input(F.normalize(x.requires_grad_())), 0.0)
    (gradient,) = torch.autograd.grad(h[0].square().sum() + h[0, 0], x)
    assert (gradient.norm(dim=1) > 0).all()


@pytest.mark.parametrize("n", [1, 2])
def test_a_batch_of_hardly_any_images(build_loss, n):
    loss = build_loss("intra_batch", num_classes=3)
    x = torch.ones(n, 4, requires_grad=True)
    value = loss(x, torch.arange(n))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"heads": 0}, "heads must be at least 1, not 0"),
        ({"heads": 3}, "heads must divide embedding_size, 4; 3 does not"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1"),
        ({"smoothing": -0.1}, "smoothing must be at least 0 and below 1, not -0.1"),
        ({"temperature": 0.0}, "temperature must be positive, not 0"),
        ({"weight": -1.0}, "weight must be at least 0, not -1"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("intra_batch", **arguments)
