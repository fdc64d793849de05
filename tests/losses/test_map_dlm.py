"""mAP-DLM against all rankings of small lists, its bounds, and its limit at epsilon 0."""

from __future__ import annotations

import itertools

import pytest
import torch

from zoo import UserError

SIZES = {"balanced": [2, 2, 2], "unbalanced": [3, 2, 1], "one_against_all": [1, 4]}


def loops(x, labels, epsilon, sign):
    """Return 1 - AP of the rankings, and the update from the two best of all rankings."""
    f = x / x.norm(dim=1, keepdim=True)
    y, losses, update, anchors = labels.tolist(), [], 0, 0
    for a in range(len(y)):
        others = [k for k in range(len(y)) if k != a]
        p, n = ([k for k in others if (y[k] == y[a]) is kind] for kind in (True, False))
        if not p or not n:
            continue
        anchors += 1
        s = {k: f[a] @ f[k] for k in others}
        rankings = []
        for order in itertools.permutations(others):
            place = {k: i for i, k in enumerate(order)}
            score = sum((s[i] - s[j]) * (1 if place[i] < place[j] else -1) for i in p for j in n)
            hits = [sum(place[i] <= place[k] for i in p) / (place[k] + 1) for k in p]
            rankings.append((score / (len(p) * len(n)), 1 - sum(hits) / len(hits)))
        ranked = max(rankings, key=lambda r: r[0].item())
        direct = max(rankings, key=lambda r: r[0].item() + sign * epsilon * r[1])
        update = update + sign / epsilon * (direct[0] - ranked[0])
        losses.append((ranked[1], float(direct[1])))
    true, moved = (sum(part) / anchors for part in zip(*losses, strict=True))
    return true, moved, update / anchors


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("update", ["positive", "negative"])
def test_the_gradient_is_the_papers_update(
    build_loss, make_batch, derive, same, sizes, epsilon, update
):
    x, labels = make_batch(sizes, dim=4, spread=1.5)
    loss = build_loss("map_dlm", epsilon=epsilon, update=update)
    sign = 1 if update == "positive" else -1
    true, moved, _ = loops(x, labels, epsilon, sign)
    value, gradient = derive(lambda z: loss(z, labels), x)
    wanted = derive(lambda z: loops(z, labels, epsilon, sign)[2], x)
    same((value - moved, gradient), wanted, 1e-12)
    assert sign * (float(value) - true) >= -1e-12  # a bound of 1 - AP


@pytest.mark.parametrize("update", ["positive", "negative"])
def test_at_epsilon_0_it_is_the_ap_loss(build_loss, make_batch, update):
    x, labels = make_batch([3, 5, 2, 4], dim=4, spread=1.5)
    f = x / x.norm(dim=1, keepdim=True)
    order = (f @ f.T).fill_diagonal_(-2).argsort(dim=1, descending=True)[:, :-1]
    hits = (labels[order] == labels[:, None]).double()
    average = (hits.cumsum(1) / torch.arange(1, len(x)) * hits).sum(1) / hits.sum(1)
    true = 1 - float(average.mean())
    far, near = (
        float(build_loss("map_dlm", epsilon=epsilon, update=update)(x, labels))
        for epsilon in (1.0, 1e-5)
    )
    assert near == pytest.approx(true, abs=1e-6)
    assert far > true + 0.05 if update == "positive" else far < true - 0.05


@pytest.mark.parametrize("update", ["positive", "negative"])
def test_the_gradient_is_the_derivative(build_loss, make_batch, update):
    x, labels = make_batch([3, 1, 3], dim=4, length=0.5)
    loss = build_loss("map_dlm", update=update)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_the_positive_update_with_a_large_epsilon_is_that_of_the_worst_ranking(
    build_loss, make_batch, derive, same
):
    """y+ has all negatives first, so that dF is twice that of the mean gap, less the best F's."""
    x, labels = make_batch([3, 4, 2], dim=4)

    def worst(z):
        f = z / z.norm(dim=1, keepdim=True)
        s, pairs = f @ f.T, []
        for a in range(len(z)):
            good = (labels == labels[a]) & (torch.arange(len(z)) != a)
            gap = s[a, good][:, None] - s[a, labels != labels[a]]
            pairs.append((-gap - gap.abs()).mean())
        return torch.stack(pairs).mean() / 1e4

    _, wanted = derive(worst, x)
    _, gradient = derive(lambda z: build_loss("map_dlm", epsilon=1e4)(z, labels), x)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-13)


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
@pytest.mark.parametrize("update", ["positive", "negative"])
def test_never_nan(build_loss, derive, x, update):
    value, gradient = derive(lambda z: build_loss("map_dlm", update=update)(z, Y), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[3], [7, 7, 7], [0, 1, 2]])
@pytest.mark.parametrize("update", ["positive", "negative"])
def test_nothing_to_learn_from_gives_zero_with_a_graph(build_loss, derive, labels, update):
    loss = build_loss("map_dlm", update=update)
    value, gradient = derive(lambda z: loss(z, torch.tensor(labels)), NOISE[: len(labels)])
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"update": "both"}], ids=str)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}.* must be"):
        build_loss("map_dlm", **wrong)
