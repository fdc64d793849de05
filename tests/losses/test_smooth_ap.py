"""Smooth-AP against loops, average precision itself, and PML's, which depends on the order."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml

from zoo import UserError
from zoo.checks.memory import PeakMemory
from zoo.losses import _ranking

SIZES = {"balanced": [4] * 4, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def loops(x, labels, t, gallery=None, gallery_labels=None):
    """Average over the anchors 1 - AP, a sigmoid for each step of a rank."""
    alone = gallery is None
    g, gy = (x, labels) if alone else (gallery, gallery_labels)
    f, h = x / x.norm(dim=1, keepdim=True), g / g.norm(dim=1, keepdim=True)
    y, gy, losses = labels.tolist(), gy.tolist(), []
    for a in range(len(y)):
        others = [k for k in range(len(gy)) if not (alone and k == a)]
        s = {k: f[a] @ h[k] for k in others}
        positives = [k for k in others if gy[k] == y[a]]
        precisions = []
        for p in positives:
            rank_of_all = rank_of_positives = 1
            for k in others:
                if k != p:
                    step = 1 / (1 + torch.exp(-(s[k] - s[p]) / t))
                    rank_of_all = rank_of_all + step
                    rank_of_positives = rank_of_positives + step * (gy[k] == y[a])
            precisions.append(rank_of_positives / rank_of_all)
        if positives:
            losses.append(1 - sum(precisions) / len(positives))
    return sum(losses) / len(losses)


def average_precision(scores, relevant):
    """Return the AP of a list without ties."""
    order = sorted(range(len(scores)), key=lambda k: -scores[k])
    hits, total = 0, 0.0
    for place, k in enumerate(order, 1):
        if relevant[k]:
            hits += 1
            total += hits / place
    return total / hits


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, temperature):
    x, labels = make_batch(sizes, dim=8)
    loss = build_loss("smooth_ap", temperature=temperature)
    found = derive(lambda z: loss(z, labels), x)
    assert found[1].abs().max() > 1e-4
    same(found, derive(lambda z: loops(z, labels, temperature), x), 1e-12)


def test_a_gallery_of_other_images_equals_the_loops(build_loss, make_batch, derive, same):
    x, labels = make_batch([4, 2, 5, 3], dim=8)
    queries, gallery = (x[:5], labels[:5]), (x[5:], labels[5:])
    loss = build_loss("smooth_ap", temperature=0.1)

    def mine(z):
        return loss(queries[0], queries[1], ref_emb=z, ref_labels=gallery[1])

    found = derive(mine, gallery[0])
    same(found, derive(lambda z: loops(*queries, 0.1, z, gallery[1]), gallery[0]), 1e-12)


def test_at_temperature_0_it_is_average_precision(build_loss, make_batch):
    x, labels = make_batch([3, 5, 2, 4], dim=8)
    f = x / x.norm(dim=1, keepdim=True)
    wanted = []
    for a in range(len(x)):
        others = [k for k in range(len(x)) if k != a]
        scores = (f[a] @ f[others].T).tolist()
        wanted.append(average_precision(scores, (labels[others] == labels[a]).tolist()))
    value = build_loss("smooth_ap", temperature=1e-6)(x, labels)
    assert float(value) == pytest.approx(1 - sum(wanted) / len(wanted), abs=1e-9)
    assert 0.2 < float(value) < 0.8


@pytest.mark.skipif(not hasattr(pml, "SmoothAPLoss"), reason="older versions of PML lack it")
def test_a_gallery_with_the_batch_itself_gives_pmls_where_that_is_right(
    build_loss, make_batch, derive
):
    loss, theirs = build_loss("smooth_ap"), pml.SmoothAPLoss()

    def mine(z, y):
        return loss(z, y, ref_emb=z + 0, ref_labels=y)

    x, labels = make_batch([4] * 4, dim=8)
    order = labels.argsort(stable=True)
    value, gradient = derive(lambda z: theirs(z, labels[order]), x[order])
    mine_value, mine_gradient = derive(lambda z: mine(z, labels), x)
    assert float(mine_value) == pytest.approx(float(value), abs=1e-6)  # theirs is in float32
    torch.testing.assert_close(mine_gradient[order], gradient, rtol=0, atol=1e-6)
    # Another order of the batch, or not as many classes as images of each, is another value.
    assert abs(float(theirs(x, labels)) - float(value)) > 1e-3
    x, labels = make_batch([4] * 6, dim=8)
    order = labels.argsort(stable=True)
    assert abs(float(theirs(x[order], labels[order])) - float(mine(x, labels))) > 0.1
    with pytest.raises(ValueError, match="same number of elements"):
        theirs(x[1:], labels[1:])
    assert math.isfinite(float(loss(x[1:], labels[1:])))


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_blocks_change_nothing_and_bound_the_memory(
    build_loss, make_batch, derive, same, monkeypatch, block
):
    x, labels = make_batch([9, 1, 14, 4, 4], dim=8)
    loss = build_loss("smooth_ap")
    wanted = derive(lambda z: loss(z, labels), x)
    monkeypatch.setattr(_ranking, "_BLOCK_ELEMENTS", block)
    memory = PeakMemory()
    with memory:
        found = derive(lambda z: loss(z, labels), x)
    same(found, wanted, 1e-15)
    assert memory.largest.bytes <= 8 * max(32 * 32, 13 * 32, block)  # not 32 * 13 * 32


def test_a_perfect_ranking_gives_0_and_the_worst_the_most(build_loss):
    x = torch.eye(4).repeat_interleave(3, 0)
    labels = torch.arange(4).repeat_interleave(3)
    loss = build_loss("smooth_ap")
    assert float(loss(x, labels)) < 1e-6
    # Both negatives are above the only positive: its precision is 1/3.
    x, labels = torch.tensor([[1.0, 0], [-1, 0], [1, 1], [1, -1]]), torch.tensor([0, 0, 1, 2])
    assert float(loss(x, labels)) == pytest.approx(2 / 3, abs=1e-6)


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
@pytest.mark.parametrize("temperature", [1e-6, 0.01, 1e3])
def test_never_nan(build_loss, derive, x, temperature):
    value, gradient = derive(lambda z: build_loss("smooth_ap", temperature=temperature)(z, Y), x)
    assert 0 <= value <= 1
    assert gradient.isfinite().all()


def test_a_collapsed_batch_has_the_average_precision_of_equal_ranks(build_loss):
    """Each other image counts half: of 2 positives and 3 negatives, P = 1/2 and Q = 3/2."""
    value = build_loss("smooth_ap")(torch.ones(6, 4), Y)
    assert float(value) == pytest.approx(1.5 / 3)


@pytest.mark.parametrize("labels", [[3], [7, 7, 7], [0, 1, 2]])
def test_nothing_to_learn_from_gives_zero_with_a_graph(build_loss, derive, labels):
    value, gradient = derive(
        lambda z: build_loss("smooth_ap")(z, torch.tensor(labels)), NOISE[: len(labels)]
    )
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_impossible_temperatures_are_refused(build_loss, temperature):
    with pytest.raises(UserError, match="temperature must be positive"):
        build_loss("smooth_ap", temperature=temperature)
