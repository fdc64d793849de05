"""Blackbox AP and recall against loops, average precision, and what ranks imply of a gradient."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError

SIZES = {"balanced": [4] * 4, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}
SETTINGS = [("ap", 0.3, 0.02), ("ap", 1.0, 0.0), ("recall", 0.3, 0.02), ("recall", 1.0, 0.2)]


def place(score, scores):
    """Return the rank of a score among scores that differ: 1 and those above."""
    return 1 + sum(other > score for other in scores)


def loops(x, labels, measure, lam, margin):
    """Return the value, and the gradient with respect to the cosines, anchor by anchor."""
    y = labels.tolist()
    f = x / x.norm(dim=1, keepdim=True)
    s = (f @ f.T).tolist()
    gradient, losses = torch.zeros(len(y), len(y), dtype=torch.float64), []
    for a in range(len(y)):
        listed = [k for k in range(len(y)) if k != a]
        good = [k for k in listed if y[k] == y[a]]
        if not good or len(good) == len(listed):
            continue
        n = len(listed)
        score = {k: s[a][k] + (-margin / 2 if k in good else margin / 2) for k in listed}
        r = {k: place(score[k], score.values()) / n for k in listed}
        q = {p: place(score[p], [score[i] for i in good]) for p in good}
        terms, slopes = [], dict.fromkeys(listed, 0.0)
        for p in good:
            if measure == "ap":
                terms.append(1 - q[p] / (n * r[p]))
                slopes[p] = q[p] / (n * r[p] ** 2) / len(good)
            else:
                v = n * r[p] - q[p]
                terms.append(math.log(1 + math.log(1 + v)))
                slopes[p] = n / (1 + math.log(1 + v)) / (1 + v) / len(good)
        losses.append(sum(terms) / len(terms))
        moved = {k: score[k] + lam * slopes[k] for k in listed}
        for k in listed:
            gradient[a, k] = -(r[k] - place(moved[k], moved.values()) / n) / lam
    return sum(losses) / len(losses), gradient / len(losses)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("measure", "lam", "margin"), SETTINGS)
def test_equals_the_loops_and_its_reference(
    build_loss, make_batch, derive, sizes, measure, lam, margin
):
    x, labels = make_batch(sizes, dim=4, spread=1.5)
    loss = build_loss("blackbox_ap", measure=measure, lambda_val=lam, margin=margin)
    value, gradient = derive(lambda z: loss(z, labels), x)
    wanted, to_cosines = loops(x, labels, measure, lam, margin)
    assert float(value) == pytest.approx(wanted, abs=1e-12)
    z = x.clone().requires_grad_()
    f = z / z.norm(dim=1, keepdim=True)
    (pulled_back,) = torch.autograd.grad(f @ f.T, z, to_cosines)
    assert gradient.abs().max() > 1e-4
    torch.testing.assert_close(gradient, pulled_back, rtol=0, atol=1e-12)
    reference = loss.reference_gradient(x, labels)
    torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-12)


def to_cosines(loss, x, labels, a):
    """Return the gradient of one anchor's loss with respect to its cosines."""
    others = torch.arange(len(x)) != a
    f = x / x.norm(dim=1, keepdim=True)
    cosines = f[others] @ f[a]
    # A gallery of points of a plane at these angles has the same cosines, and one free number each.
    angles = cosines.acos().requires_grad_()
    gallery = torch.stack([angles.cos(), angles.sin()], 1)
    anchor = torch.tensor([[1.0, 0.0]], dtype=x.dtype)
    value = loss(anchor, labels[a : a + 1], ref_emb=gallery, ref_labels=labels[others])
    (gradient,) = torch.autograd.grad(value, angles)
    return -gradient / angles.detach().sin(), labels[others] == labels[a]


@pytest.mark.parametrize("measure", ["ap", "recall"])
def test_ranks_are_exchanged(build_loss, make_batch, measure):
    """Ranks have a constant sum; the positives that move up overtake the negatives that sink."""
    x, labels = make_batch([4, 5, 3], dim=4, spread=1.5)
    loss, moved = build_loss("blackbox_ap", measure=measure, lambda_val=0.5), 0
    for a in range(len(x)):
        gradient, positive = to_cosines(loss, x, labels, a)
        assert float(gradient.sum()) == pytest.approx(0, abs=1e-9)
        assert (gradient[~positive] >= -1e-9).all()
        assert float(gradient[positive].sum()) <= 1e-9
        moved += int(gradient.any())
    assert moved > len(x) / 2


def test_without_margin_it_is_average_precision(build_loss, make_batch):
    x, labels = make_batch([3, 5, 2, 4], dim=4, spread=1.5)
    f = x / x.norm(dim=1, keepdim=True)
    order = (f @ f.T).fill_diagonal_(-2).argsort(dim=1, descending=True)[:, :-1]
    hits = (labels[order] == labels[:, None]).double()
    precision = hits.cumsum(1) / torch.arange(1, len(x))
    average = (precision * hits).sum(1) / hits.sum(1)
    value = build_loss("blackbox_ap", margin=0.0)(x, labels)
    assert float(value) == pytest.approx(1 - float(average.mean()), abs=1e-12)
    assert float(build_loss("blackbox_ap", margin=0.5)(x, labels)) > float(value) + 0.01


def test_what_multiplies_the_loss_multiplies_the_gradient(build_loss, make_batch, derive):
    """As a scaler of gradients does; with lambda applied to what arrives, it would change."""
    x, labels = make_batch([4] * 4, dim=4, spread=1.5)
    loss = build_loss("blackbox_ap", lambda_val=0.5)
    _, once = derive(lambda z: loss(z, labels), x)
    _, scaled = derive(lambda z: 1024 * loss(z, labels), x)
    torch.testing.assert_close(scaled, 1024 * once, rtol=0, atol=1e-12)


def test_equal_scores_share_their_ranks(build_loss):
    """2 positives and 3 negatives, all equal: ranks 3 and, among positives, 1.5."""
    x, labels = torch.ones(6, 4), torch.tensor([0, 0, 1, 1, 0, 1])
    value = build_loss("blackbox_ap", margin=0.0)(x, labels)
    assert float(value) == pytest.approx(1 - 1.5 / 3)
    noisy = x + 1e-7 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    again = build_loss("blackbox_ap", margin=0.0)(noisy[order], labels[order])
    assert float(again) == pytest.approx(float(value))


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
@pytest.mark.parametrize("measure", ["ap", "recall"])
def test_never_nan(build_loss, derive, x, measure):
    value, gradient = derive(lambda z: build_loss("blackbox_ap", measure=measure)(z, Y), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[3], [7, 7, 7], [0, 1, 2]])
@pytest.mark.parametrize("measure", ["ap", "recall"])
def test_nothing_to_learn_from_gives_zero_with_a_graph(build_loss, derive, labels, measure):
    loss = build_loss("blackbox_ap", measure=measure)
    value, gradient = derive(lambda z: loss(z, torch.tensor(labels)), NOISE[: len(labels)])
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize(
    "wrong", [{"measure": "ndcg"}, {"lambda_val": 0.0}, {"margin": -0.1}], ids=str
)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}.* must be"):
        build_loss("blackbox_ap", **wrong)
