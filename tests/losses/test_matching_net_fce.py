"""Full context embeddings against a step-by-step transcription of appendix A."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError
from zoo.losses.matching_net_fce import _draw


def build(size=5, seed=0, **arguments):
    torch.manual_seed(seed)
    arguments = {"embedding_size": size, "scale": 3.0, "shots": 2, "steps": 3, **arguments}
    return zoo.build("losses", "matching_net_fce", **arguments).double()


def call(loss, x, labels, **more):
    torch.manual_seed(3)
    return loss(x, labels, **more)


def lstm(cell, x, h, c):
    """One step of an LSTM, gate by gate."""
    gates = cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def read(cell, sequence):
    h = c = torch.zeros_like(sequence[0])
    out = []
    for x in sequence:
        h, c = lstm(cell, x, h, c)
        out.append(h)
    return out


def transcription(loss, queries, query_labels, support, support_labels):
    """The value for a support set that is a sequence."""
    q, s = F.normalize(queries), F.normalize(support)
    forth, back = read(loss.forth, list(s)), read(loss.back, list(s.flip(0)))[::-1]
    g = torch.stack([a + b + x for a, b, x in zip(forth, back, s, strict=True)])
    values = []
    for x, label in zip(q, query_labels, strict=True):
        h, c = x, torch.zeros_like(x)
        for _ in range(loss.steps):
            a = torch.stack([h @ other for other in g]).softmax(0)
            r = sum(weight * other for weight, other in zip(a, g, strict=True))
            out, c = lstm(loss.attend, torch.cat([x, r]), h, c)
            h = out + x
        votes = (loss.scale * F.cosine_similarity(h, g)).softmax(0)
        own = votes[support_labels == label]
        if len(own):
            values.append(-own.sum().log())
    return torch.stack(values).mean() if values else queries.sum() * 0


def split(x, labels, shots=2):
    """The support set that a call draws, in its order, and the queries."""
    torch.manual_seed(3)
    support, order = _draw(labels[:, None] == labels, shots)
    rows = [i for i in sorted(range(len(x)), key=lambda i: int(order[i])) if support[i]]
    return x[~support], labels[~support], x[rows], labels[rows]


@pytest.mark.parametrize("sizes", [[4] * 3, [3, 5, 1, 2]])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_value_and_gradients_equal_the_transcription(make_batch, derive, same, sizes, steps):
    x, labels = make_batch(sizes, dim=5)
    loss = build(steps=steps)
    wanted = derive(lambda z: transcription(loss, *split(z, labels)), x)
    same(derive(lambda z: call(loss, z, labels), x), wanted, 1e-12)
    used = [*loss.forth.parameters(), *loss.back.parameters()]
    used += loss.attend.parameters() if steps else []
    found = torch.autograd.grad(call(loss, x, labels), used)
    others = torch.autograd.grad(transcription(loss, *split(x, labels)), used)
    torch.testing.assert_close(found, others)
    assert all(gradient.abs().max() > 1e-8 for gradient in found)


def test_a_gallery_is_the_support_set_in_its_order(make_batch, derive, same):
    x, labels = make_batch([3] * 3, dim=5)
    gallery, gallery_labels = make_batch([2, 1, 4], dim=5, seed=1)
    loss = build()
    wanted = derive(lambda z: transcription(loss, z, labels, gallery, gallery_labels), x)
    got = derive(lambda z: loss(z, labels, ref_emb=gallery, ref_labels=gallery_labels), x)
    same(got, wanted, 1e-12)
    turned = loss(x, labels, ref_emb=gallery.flip(0), ref_labels=gallery_labels.flip(0))
    assert abs(turned - got[0]) > 1e-6


def test_with_lstms_that_say_nothing_it_is_a_matching_network(make_batch, build_loss):
    x, labels = make_batch([3] * 3, dim=5)
    gallery, gallery_labels = make_batch([2, 1, 4], dim=5, seed=1)
    loss = build()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.zero_()
    plain = build_loss("matching_net", scale=3.0)
    more = {"ref_emb": gallery, "ref_labels": gallery_labels}
    torch.testing.assert_close(loss(x, labels, **more), plain(x, labels, **more))


def test_without_context_it_is_the_same_task_for_a_matching_network(make_batch, build_loss):
    x, labels = make_batch([4, 3, 5], dim=5)
    queries, query_labels, support, support_labels = split(x, labels)
    more = {"ref_emb": support, "ref_labels": support_labels}
    wanted = build_loss("matching_net", scale=3.0)(queries, query_labels, **more)
    torch.testing.assert_close(call(build(context=False), x, labels), wanted)


@pytest.mark.parametrize("shots", [1, 2, 9])
def test_the_support_set_has_shots_of_each_class_in_every_order(shots):
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    torch.manual_seed(0)
    first = set()
    for _ in range(100):
        support, order = _draw(labels[:, None] == labels, shots)
        assert torch.equal(order.sort().values, torch.arange(6))
        counts = labels[support].bincount(minlength=3).tolist()
        assert counts == [min(shots, 3), min(shots, 2), 1]
        rows = sorted(range(6), key=lambda i, order=order: int(order[i]))
        first.add(next(i for i in rows if support[i]))
    assert first == set(range(6))


def test_the_context_changes_an_embedding(make_batch):
    """A query and its support are compared differently beside other classes."""
    x, _ = make_batch([2, 2, 2], dim=5)
    loss, f = build(), F.normalize(x)
    few, many = (loss._read(f[:n], torch.ones(n).bool(), torch.arange(n)) for n in (2, 6))
    assert (few - many[:2]).abs().max() > 1e-3


def test_the_random_numbers_are_those_of_torch(make_batch):
    x, labels = make_batch([4] * 4, dim=5)
    loss = build()
    assert call(loss, x, labels) == call(loss, x, labels)
    assert loss(x, labels) != call(loss, x, labels)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0]])
def test_nothing_to_learn_from_gives_zero_with_a_graph(labels):
    x = torch.randn(len(labels), 5).double().requires_grad_()
    value = build()(x, torch.tensor(labels))
    value.backward()
    assert value == 0
    assert not x.grad.any()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"scale": 0.0}, "positive"), ({"shots": 0}, "at least 1"), ({"steps": -1}, "at least 0")],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
