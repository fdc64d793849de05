"""ROADMAP against loops, the bound that it is, and the slope where Smooth-AP has none."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError
from zoo.losses import _ranking
from zoo.losses.roadmap import ROADMAPLoss

SIZES = {"balanced": [4] * 4, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def bound(x, t, rho, delta):
    """The step that counts negatives, as the paper writes it, piece by piece."""
    sigmoid = 1 / (1 + torch.exp(-x / t))
    if x <= 0:
        return sigmoid
    if x <= delta:
        return sigmoid + 0.5
    return rho * (x - delta) + 1 / (1 + math.exp(-delta / t)) + 0.5


def loops(x, labels, step, weight, alpha=0.9, beta=0.6):
    f = x / x.norm(dim=1, keepdim=True)
    y, losses, low, high = labels.tolist(), [], [], []
    for a in range(len(y)):
        s = [f[a] @ f[k] for k in range(len(y))]
        positives = [k for k in range(len(y)) if k != a and y[k] == y[a]]
        negatives = [k for k in range(len(y)) if y[k] != y[a]]
        low += [alpha - s[p] for p in positives if s[p] < alpha]
        high += [s[n] - beta for n in negatives if s[n] > beta]
        precision = 0
        for p in positives:
            u = sum(1 for i in positives if s[i] > s[p])
            v = sum(step(s[n] - s[p]) for n in negatives)
            precision = precision + (1 + u) / (1 + u + v)
        if positives:
            losses.append(1 - precision / len(positives))
    parts = [sum(part) / len(part) if part else 0 for part in (losses, low, high)]
    return (1 - weight) * parts[0] + weight * (parts[1] + parts[2])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, weight):
    x, labels = make_batch(sizes, dim=8, spread=0.7)
    given = {"temperature": 0.05, "rho": 10.0, "delta": 0.1}
    loss = build_loss("roadmap", weight=weight, **given)
    found = derive(lambda z: loss(z, labels), x)
    assert found[1].abs().max() > 1e-4
    same(
        found,
        derive(lambda z: loops(z, labels, lambda g: bound(g, *given.values()), weight), x),
        1e-12,
    )


def test_a_gallery_is_ranked_without_the_batch(build_loss, make_batch, derive, same):
    """The same images, of which the batch is the anchors: totals of anchors add up."""
    x, labels = make_batch([4, 2, 5, 3], dim=8)
    loss = build_loss("roadmap", weight=0.0)
    values = []
    for a in range(len(x)):
        rest = [k for k in range(len(x)) if k != a]
        values.append(
            loss(x[a : a + 1], labels[a : a + 1], ref_emb=x[rest], ref_labels=labels[rest])
        )
    torch.testing.assert_close(torch.stack(values).mean(), loss(x, labels), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delta", [0.0, 0.05, 0.5])
def test_it_is_never_below_the_loss_of_the_true_ranks(build_loss, make_batch, seed, delta):
    x, labels = make_batch([3, 5, 2, 4], dim=4, seed=seed)
    true = loops(x, labels, lambda g: float(g > 0), 0.0)
    value = float(build_loss("roadmap", weight=0.0, delta=delta)(x, labels))
    smooth = float(build_loss("smooth_ap")(x, labels))
    assert value >= true - 1e-12
    assert 0.01 < true < 0.9
    assert smooth < value


def test_the_step_is_continuous_at_delta_and_above_that_of_the_rank():
    loss = ROADMAPLoss()
    gaps = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    steps = loss._bound(gaps)
    assert (steps >= (gaps > 0).double()).all()
    assert (steps.diff() >= 0).all()
    near = torch.tensor([0.05 - 1e-9, 0.05, 0.05 + 1e-9], dtype=torch.float64)
    torch.testing.assert_close(loss._bound(near), torch.full((3,), 1.4933071490757153).double())


def test_a_negative_far_above_moves_where_smooth_ap_has_no_slope(build_loss, derive):
    x = torch.tensor([[1.0, 0], [0, 1], [0.8, -0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    _, moved = derive(lambda z: build_loss("roadmap", weight=0.0)(z, labels), x)
    _, stuck = derive(lambda z: build_loss("smooth_ap")(z, labels), x)
    assert stuck.abs().max() < 1e-9
    assert moved.abs().max() > 1e-3


def test_equal_cosines_count_against(build_loss):
    """2 positives and 3 negatives, all equal: no positive counts another, each negative counts."""
    x, labels = torch.ones(6, 4), torch.tensor([0, 0, 1, 1, 0, 1])
    value = build_loss("roadmap", weight=0.0)(x, labels)
    assert float(value) == pytest.approx(3 / 4, abs=1e-4)
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    noisy = x + 1e-7 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    again = build_loss("roadmap", weight=0.0)(noisy[order], labels[order])
    assert float(again) == pytest.approx(float(value), abs=1e-4)


def test_blocks_change_nothing(build_loss, make_batch, derive, same, monkeypatch):
    x, labels = make_batch([9, 1, 14, 4, 4], dim=8)
    loss = build_loss("roadmap")
    wanted = derive(lambda z: loss(z, labels), x)
    monkeypatch.setattr(_ranking, "_BLOCK_ELEMENTS", 1000)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-15)


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
@pytest.mark.parametrize("labels", [Y, Y * 0, torch.arange(6)], ids=["two", "one", "singles"])
def test_never_nan(build_loss, derive, x, labels):
    value, gradient = derive(lambda z: build_loss("roadmap")(z, labels), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_what_remains_without_positives_or_negatives(build_loss, derive):
    """The first part needs both; the second pulls and pushes each on its own."""
    for labels in (Y * 0, torch.arange(6)):
        value, gradient = derive(lambda z, y=labels: build_loss("roadmap", weight=0.0)(z, y), NOISE)
        assert value == 0
        assert not gradient.any()
        assert float(build_loss("roadmap", weight=1.0)(NOISE, labels)) > 0
    value, gradient = derive(lambda z: build_loss("roadmap")(z, Y[:1]), NOISE[:1])
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"rho": -1.0}, {"delta": -0.1}, {"weight": 1.5}, {"alpha": 2.0}],
    ids=str,
)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}.* must be"):
        build_loss("roadmap", **wrong)
