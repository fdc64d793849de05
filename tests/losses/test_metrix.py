"""Metrix against loops over mixtures that are really made, and its clean losses."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def drawn(labels, concentration=2.0, seed=0):
    """What a call after that seed draws."""
    from zoo.losses.metrix import _draw

    positive = (labels[:, None] == labels).fill_diagonal_(fill_value=False)
    torch.manual_seed(seed)
    return _draw(positive, concentration)


def loops(x, labels, draw, form, weight, m, beta, gamma):
    f = [row / row.norm() for row in x]
    y, n = labels.tolist(), len(labels)
    partner, share = draw
    anchors_are_partners = bool((partner == torch.arange(n)).all())
    clean, mixed = [], []  # for each anchor, pairs of cosine and degree
    for a in range(n):
        others = [i for i in range(n) if i != a]
        clean.append([(f[a] @ f[i], float(y[i] == y[a])) for i in others])
        mixed.append([])
        has_positives = sum(y[i] == y[a] for i in others) > 0
        if has_positives or anchors_are_partners:
            for i in others:
                if y[i] != y[a]:
                    s = float(share[a, i])
                    v = s * f[partner[a]] + (1 - s) * f[i]
                    mixed[a].append((f[a] @ v / v.norm(), s))
    total = 0
    for part, factor in ((clean, 1.0), (mixed, weight)):
        if form == "contrastive":
            pairs = [pair for of_anchor in part for pair in of_anchor]
            pull = [d * (1 - s) for s, d in pairs if d > 0]
            push = [(1 - d) * (s - m) for s, d in pairs if d < 1 and s > m]
            total = total + factor * sum(sum(t) / len(t) for t in (pull, push) if t)
        else:
            for pairs in part:
                pull = sum(d * torch.exp(-beta * (s - m)) for s, d in pairs)
                push = sum((1 - d) * torch.exp(gamma * (s - m)) for s, d in pairs)
                one = torch.log(1 + pull + 0 * x.sum()) / beta
                other = torch.log(1 + push + 0 * x.sum()) / gamma
                total = total + factor * (one + other) / n
    return total


@pytest.mark.parametrize("form", ["contrastive", "multi_similarity"])
@pytest.mark.parametrize("sizes", [[3, 1, 4], [2] * 4])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_equals_the_loops(build_loss, make_batch, derive, same, form, sizes, seed):
    x, labels = make_batch(sizes, dim=4)
    arguments = {"weight": 0.7, "margin": 0.3, "beta": 3.0, "gamma": 20.0, "concentration": 1.5}
    loss = build_loss("metrix", form=form, **arguments)
    draw = drawn(labels, 1.5, seed)
    wanted = derive(lambda z: loops(z, labels, draw, form, 0.7, 0.3, 3.0, 20.0), x)
    torch.manual_seed(seed)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-10)


def test_both_kinds_of_partners_are_drawn():
    labels = torch.tensor([0, 1, 0, 1, 0, 2])
    themselves = set()
    for seed in range(40):
        partner, share = drawn(labels, seed=seed)
        assert torch.equal(labels[partner], labels)
        itself = partner == torch.arange(6)
        assert itself.all() or (not itself[:5].any() and itself[5])
        themselves.add(bool(itself.all()))
        assert ((share > 0) & (share < 1)).all()
    assert themselves == {True, False}


@pytest.mark.parametrize("concentration", [0.5, 2.0])
def test_the_shares_have_the_variance_of_the_distribution(concentration):
    _, share = drawn(torch.zeros(200).long(), concentration)
    assert float(share.mean()) == pytest.approx(0.5, abs=0.01)
    variance = 1 / (4 * (2 * concentration + 1))
    assert float(share.var()) == pytest.approx(variance, rel=0.05)


def test_without_weight_it_is_the_multi_similarity_loss(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4])
    clean = build_loss("multi_similarity")
    loss = build_loss("metrix", weight=0.0)
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: clean(z, labels), x), 1e-12)


def test_a_mixture_of_opposite_embeddings_is_finite(build_loss, monkeypatch):
    from zoo.losses import metrix

    def halves(positive, _):
        return torch.arange(len(positive)), torch.full(positive.shape, 0.5)

    monkeypatch.setattr(metrix, "_draw", halves)
    x = torch.tensor([[1.0, 0], [-1, 0]], requires_grad=True)
    for form in ("contrastive", "multi_similarity"):
        value = build_loss("metrix", form=form)(x, torch.arange(2))
        value.backward()
        assert value.isfinite()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", ["contrastive", "multi_similarity"])
def test_one_class_has_no_mixtures(build_loss, make_batch, form):
    x, labels = make_batch([5])
    with_mixtures = build_loss("metrix", form=form)(x, labels)
    assert with_mixtures == build_loss("metrix", form=form, weight=0.0)(x, labels)
    assert float(with_mixtures) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight must be at least 0, not -1"),
        ({"concentration": 0.0}, "concentration must be positive, not 0"),
        ({"beta": 0.0}, "beta must be positive, not 0"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("metrix", **arguments)
    with pytest.raises(UserError, match="form"):
        build_loss("metrix", form="triplet")
    assert math.isfinite(build_loss("metrix").margin)
