"""The ranked list loss against loops, and where PML's differs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import RankedListLoss

from zoo import UserError

BATCHES = {"20x3": [3] * 20, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}
SETTINGS = {
    "sop": {},
    "cub": {"alpha": 1.4, "margin": 0.2},
    "both_temperatures": {"temperature_pos": 3.0, "balance": 0.5},
    "both_ends": {"query_gradient_only": False},
    "query_weights": {"query_weights": True, "temperature_pos": 1.0},
}


def loops(x, y, alpha=1.2, margin=0.4, tn=10.0, tp=0.0, balance=1.0, query_weights=False):
    """The value, in plain numbers."""
    f = F.normalize(x)
    n, total, total_weight = len(x), 0.0, 0.0
    for a in range(n):
        of_query, weight = 0.0, 0.0
        for same, threshold, sign, temperature, share in (
            (True, alpha - margin, 1, tp, 1.0),
            (False, alpha, -1, tn, balance),
        ):
            weights, hinges = [], []
            for b in range(n):
                hinge = sign * (float((f[a] - f[b]).norm()) - threshold)
                if b != a and (y[a] == y[b]) == same and hinge > 0:
                    weights.append(math.exp(temperature * hinge))
                    hinges.append(hinge)
            if hinges:
                products = sum(w * h for w, h in zip(weights, hinges, strict=True))
                of_query += share * products / sum(weights)
                weight += sum(weights)
        total += (weight if query_weights else 1) * of_query
        total_weight += weight if query_weights else 1
    return total / total_weight


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_value_and_gradient_equal_the_loops(build_loss, make_batch, derive, sizes, settings):
    x, labels = make_batch(sizes)
    loss = build_loss("rll", **settings)
    value, gradient = derive(lambda z: loss(z, labels), x)
    short = {"temperature_neg": "tn", "temperature_pos": "tp"}
    kept = {short.get(k, k): v for k, v in settings.items() if k != "query_gradient_only"}
    assert float(value) == pytest.approx(loops(x, labels.tolist(), **kept), abs=1e-13)
    torch.testing.assert_close(gradient, loss.reference_gradient(x, labels), atol=1e-13, rtol=0)
    assert gradient.abs().max() > 1e-4


def test_only_the_query_is_moved(build_loss, derive):
    """Of two images one is a query whose positive is far; the gallery stays where it is."""
    loss = build_loss("rll")
    gallery = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    one = torch.tensor([1])
    loss(query, one, ref_emb=gallery, ref_labels=one).backward()
    assert query.grad.norm() > 0.1
    assert gallery.grad is None or not gallery.grad.any()


def test_it_is_the_derivative_without_weights_and_with_both_ends(build_loss, make_batch):
    x, labels = make_batch([3] * 6, dim=5)
    loss = build_loss("rll", temperature_neg=0.0, query_gradient_only=False)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())
    other = build_loss("rll", temperature_neg=0.0)
    assert not torch.autograd.gradcheck(lambda z: other(z, labels), x, raise_exception=False)


def test_pmls_is_half_of_it_without_temperature(build_loss, make_batch, derive, same):
    x, labels = make_batch([3] * 8)
    mine = build_loss("rll", temperature_neg=0.0, query_gradient_only=False)
    theirs = RankedListLoss(margin=0.4, Tn=0, imbalance=0.5, alpha=1.2, Tp=0)
    value, gradient = derive(lambda z: theirs(z, labels), x)
    same(derive(lambda z: mine(z, labels), x), (2 * value, 2 * gradient), 3e-4)


def authors_layer(x, labels, alpha=1.2, margin=0.4, tn=10.0):
    """The gradient wrt the normalised embeddings in the authors' Caffe layer, pair by pair."""
    f, y = F.normalize(x), labels.tolist()
    pairs = [(a, b) for a in range(len(y)) for b in range(a + 1, len(y))]
    weights = {}
    sums = {same: [1e-8] * len(y) for same in (True, False)}
    for a, b in pairs:
        same, d = y[a] == y[b], float((f[a] - f[b]).norm())
        hinge = d - (alpha - margin) if same else alpha - d
        weights[a, b] = math.exp((0 if same else tn) * hinge) if hinge > 0 else 0.0
        for end in (a, b):
            sums[same][end] += weights[a, b]
    of_all = sum(sums[True]) + sum(sums[False])
    gradient = torch.zeros_like(f)
    for a, b in pairs:
        same, away = y[a] == y[b], f[a] - f[b]
        if weights[a, b]:
            for end, sign in ((a, 1), (b, -1)):
                share = 0.5 * weights[a, b] / sums[same][end]
                share *= (sums[True][end] + sums[False][end]) / of_all
                gradient[end] += (sign if same else -sign) * share * away
    return gradient


def with_distances(x, labels, loss):
    """The gradient of the loss if each pair's were multiplied by its distance, from autograd."""
    f = F.normalize(x).requires_grad_()
    d = torch.cdist(f.detach(), f.detach())
    other = f.detach()
    half_squares = ((f[:, None] - other) ** 2).sum(2) / 2
    same = labels[:, None] == labels
    pull = (same & (d > loss.alpha - loss.margin)).double()
    push = (~same & (d < loss.alpha)) * torch.exp(loss.temperature_neg * (loss.alpha - d))
    of_query = torch.zeros(len(x), dtype=torch.float64)
    for w, sign in ((pull, 1), (push, -1)):
        of_query = of_query + sign * (w * half_squares).sum(1) / w.sum(1).clamp_min(1e-30)
    weight = pull.sum(1) + push.sum(1)
    (gradient,) = torch.autograd.grad((weight * of_query).sum() / weight.sum(), f)
    return gradient


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
def test_query_weights_are_those_of_the_authors_layer(build_loss, make_batch, sizes):
    """With them, and with the distances that their layer does not divide by, half of it is ours."""
    x, labels = make_batch(sizes)
    loss = build_loss("rll", query_weights=True)
    theirs = authors_layer(x, labels)
    torch.testing.assert_close(with_distances(x, labels, loss) / 2, theirs, atol=1e-7, rtol=0)
    assert theirs.abs().max() > 1e-3


def test_query_weights_change_the_direction_of_the_gradient(build_loss, make_batch, derive):
    equal, weighed = (build_loss("rll", query_weights=on) for on in (False, True))

    def cosine(x, labels):
        one = derive(lambda z: equal(z, labels), x)[1]
        other = derive(lambda z: weighed(z, labels), x)[1]
        return float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0))

    cosines = [cosine(*make_batch([3] * 20, seed=seed)) for seed in range(10)]
    assert 0.5 < min(cosines) < max(cosines) < 0.9


def test_parts_with_query_weights_add_up(build_loss, make_batch):
    x, labels = make_batch([2, 5, 3, 7])
    loss = build_loss("rll", query_weights=True)
    parts = [loss.part(x, labels, rows) for rows in (slice(0, 4), slice(4, 17))]
    totals, counts = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
    torch.testing.assert_close((totals / counts).sum(), loss(x, labels))


def test_inside_the_inner_and_beyond_the_outer_sphere_nothing_is_left(build_loss, derive):
    x = torch.tensor([[1.0, 0], [1, 0.01], [-1, 0], [-1, 0.01]], dtype=torch.float64)
    for on in (False, True):
        loss = build_loss("rll", query_weights=on)
        value, gradient = derive(lambda z, loss=loss: loss(z, torch.tensor([0, 0, 1, 1])), x)
        assert value == 0
        assert not gradient.any()


def test_a_hot_temperature_does_not_overflow(build_loss, make_batch, derive):
    x, labels = make_batch([3] * 8)
    loss = build_loss("rll", temperature_neg=1e4, temperature_pos=1e4)
    value, gradient = derive(lambda z: loss(z, labels), x.float())
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_the_hottest_temperature_of_query_weights_does_not_overflow(build_loss, make_batch, derive):
    x, labels = make_batch([30] * 10)
    loss = build_loss("rll", temperature_neg=50.0, query_weights=True)
    collapsed = (x * 1e-4 + 1).float()
    value, gradient = derive(lambda z: loss(z, labels), collapsed)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    with pytest.raises(UserError, match="lower the temperatures"):
        build_loss("rll", temperature_neg=60.0, query_weights=True)


@pytest.mark.parametrize("wrong", [{"alpha": 2.1}, {"margin": 1.3}, {"margin": -0.1}])
def test_senseless_spheres(build_loss, wrong):
    with pytest.raises(UserError, match="0 <= margin <= alpha <= 2"):
        build_loss("rll", **wrong)
    with pytest.raises(UserError, match="at least 0"):
        build_loss("rll", balance=-1.0)
    with pytest.raises(UserError, match="alpha: must be"):
        build_loss("rll", alpha=float("nan"))
