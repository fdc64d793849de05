"""mAP-SSVM against all rankings of small lists, and the bound that it is."""

from __future__ import annotations

import itertools

import pytest
import torch

from zoo import UserError

SIZES = {"balanced": [2, 2, 2], "unbalanced": [3, 2, 1], "one_against_all": [1, 4]}


def loops(x, labels, margin):
    """Try every ranking of each anchor's list."""
    f = x / x.norm(dim=1, keepdim=True)
    y, losses = labels.tolist(), []
    for a in range(len(y)):
        others = [k for k in range(len(y)) if k != a]
        p, n = ([k for k in others if (y[k] == y[a]) is kind] for kind in (True, False))
        if not p or not n:
            continue
        s = {k: f[a] @ f[k] for k in others}
        right = sum(s[i] - s[j] for i in p for j in n)
        values = []
        for order in itertools.permutations(others):
            place = {k: i for i, k in enumerate(order)}
            score = sum((s[i] - s[j]) * (1 if place[i] < place[j] else -1) for i in p for j in n)
            hits = [sum(place[i] <= place[k] for i in p) / (place[k] + 1) for k in p]
            loss = 1 - sum(hits) / len(hits)
            values.append((score - right) / (len(p) * len(n)) + margin * loss)
        losses.append(max(values))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_equals_the_best_of_all_rankings(build_loss, make_batch, derive, same, sizes, margin):
    x, labels = make_batch(sizes, dim=4, spread=1.5)
    loss = build_loss("map_ssvm", margin=margin)
    found = derive(lambda z: loss(z, labels), x)
    assert found[1].abs().max() > 1e-3
    same(found, derive(lambda z: loops(z, labels, margin), x), 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_at_least_the_ap_loss_of_the_ranking(build_loss, make_batch, seed):
    x, labels = make_batch([3, 5, 2, 4], dim=4, spread=1.5, seed=seed)
    f = x / x.norm(dim=1, keepdim=True)
    order = (f @ f.T).fill_diagonal_(-2).argsort(dim=1, descending=True)[:, :-1]
    hits = (labels[order] == labels[:, None]).double()
    average = (hits.cumsum(1) / torch.arange(1, len(x)) * hits).sum(1) / hits.sum(1)
    true = 1 - float(average.mean())
    assert true > 0.1
    for margin in (0.1, 1.0, 10.0):
        assert float(build_loss("map_ssvm", margin=margin)(x, labels)) >= margin * true


def test_a_ranking_that_is_better_by_the_margin_has_no_loss(build_loss, derive):
    """One positive at cosine 1, one negative at 0: the other ranking scores 2 less, AP 1/2."""
    x = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    labels = torch.tensor([0, 0, 1])
    for margin, wanted in ((3.9, 0.0), (4.1, 0.05)):
        value, gradient = derive(lambda z, m=margin: build_loss("map_ssvm", margin=m)(z, labels), x)
        assert float(value) == pytest.approx(wanted, abs=1e-6)
        assert bool(gradient.any()) == (wanted > 0)


def test_the_gradient_is_the_derivative(build_loss, make_batch):
    x, labels = make_batch([3, 1, 3], dim=4, length=0.5)
    loss = build_loss("map_ssvm")
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


NOISE = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 0, 1, 1, 0, 1])
HARD = {
    "collapsed": torch.ones(6, 4),
    "antipodal": torch.tensor([1.0, -1, 1, -1, 1, 1])[:, None] * NOISE[:1],
    "duplicates": NOISE[[0, 0, 2, 2, 0, 2]],
    "zero rows": NOISE * torch.tensor([0.0, 1, 0, 1, 1, 1])[:, None],
    "huge": NOISE * 1e30,
}


@pytest.mark.parametrize("x", HARD.values(), ids=HARD)
def test_never_nan(build_loss, derive, x):
    value, gradient = derive(lambda z: build_loss("map_ssvm")(z, Y), x)
    assert 0 <= value <= 5
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[3], [7, 7, 7], [0, 1, 2]])
def test_nothing_to_learn_from_gives_zero_with_a_graph(build_loss, derive, labels):
    value, gradient = derive(
        lambda z: build_loss("map_ssvm")(z, torch.tensor(labels)), NOISE[: len(labels)]
    )
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("margin", [0.0, -1.0])
def test_impossible_margins_are_refused(build_loss, margin):
    with pytest.raises(UserError, match="margin must be positive"):
        build_loss("map_ssvm", margin=margin)
