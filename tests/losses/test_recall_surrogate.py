"""The recall@k surrogate against loops, recall itself, and the limits of its two steps."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError
from zoo.losses import _ranking

SIZES = {"balanced": [4] * 4, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def loops(x, labels, ks, t, t_k):
    f = x / x.norm(dim=1, keepdim=True)
    y, losses = labels.tolist(), []
    for a in range(len(y)):
        others = [k for k in range(len(y)) if k != a]
        positives = [k for k in others if y[k] == y[a]]
        if not positives or len(positives) == len(others):
            continue
        ranks = []
        for p in positives:
            steps = [
                1 / (1 + torch.exp(-(f[a] @ f[j] - f[a] @ f[p]) / t)) for j in others if j != p
            ]
            ranks.append(1 + sum(steps))
        for k in ks:
            found = sum(1 / (1 + torch.exp(-(k - rank) / t_k)) for rank in ranks)
            losses.append(1 - min(found, k) / min(k, len(positives)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("ks", "t", "t_k"), [((1, 2, 4), 0.05, 1.0), ((3,), 0.3, 0.2)])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, ks, t, t_k):
    x, labels = make_batch(sizes, dim=8)
    loss = build_loss("recall_surrogate", ks=ks, temperature=t, k_temperature=t_k)
    found = derive(lambda z: loss(z, labels), x)
    assert found[1].abs().max() > 1e-4
    same(found, derive(lambda z: loops(z, labels, ks, t, t_k), x), 1e-12)


def test_where_more_than_k_are_found_there_is_nothing_to_gain(build_loss, make_batch, derive, same):
    """With a soft k, more than k positives are found among the first k: recall ends at 1."""
    x, labels = make_batch([9, 9], dim=8, spread=0.2)
    loss = build_loss("recall_surrogate", ks=(1,), k_temperature=20.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value == 0
    assert not gradient.any()
    assert float(loops(x, labels, (1,), 0.01, 20.0)) == 0


@pytest.mark.parametrize("k", [1, 2, 4])
def test_at_temperatures_0_it_is_recall_where_rank_k_counts_half(build_loss, make_batch, k):
    x, labels = make_batch([3, 5, 2, 4], dim=4, spread=1.5)
    f = x / x.norm(dim=1, keepdim=True)
    scores = (f @ f.T).fill_diagonal_(-2)
    hits = (labels[scores.argsort(dim=1, descending=True)] == labels[:, None]).double()
    found = hits[:, : k - 1].sum(1) + hits[:, k - 1] / 2
    recall = found / ((labels == labels[:, None]).sum(1) - 1).clamp_max(k)
    loss = build_loss("recall_surrogate", ks=(k,), temperature=1e-7, k_temperature=1e-3)
    assert 0.1 < float(recall.mean()) < 0.9
    assert float(loss(x, labels)) == pytest.approx(1 - float(recall.mean()), abs=1e-6)


def test_a_perfect_ranking_of_one_positive(build_loss):
    x = torch.eye(4).repeat_interleave(2, 0)
    labels = torch.arange(4).repeat_interleave(2)
    for k, wanted in ((1, 0.5), (4, 0.0474)):
        value = build_loss("recall_surrogate", ks=(k,))(x, labels)
        assert float(value) == pytest.approx(wanted, abs=1e-4)


def test_the_mean_over_the_k_is_that_of_single_ones(build_loss, make_batch):
    x, labels = make_batch([3, 5, 2, 4], dim=4)
    each = [build_loss("recall_surrogate", ks=(k,))(x, labels) for k in (1, 2, 8)]
    value = build_loss("recall_surrogate", ks=(1, 2, 8))(x, labels)
    torch.testing.assert_close(value, torch.stack(each).mean(), rtol=0, atol=1e-14)


def test_blocks_change_nothing(build_loss, make_batch, derive, same, monkeypatch):
    x, labels = make_batch([9, 1, 14, 4, 4], dim=8)
    loss = build_loss("recall_surrogate")
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
@pytest.mark.parametrize("t_k", [1e-6, 1.0])
def test_never_nan(build_loss, derive, x, t_k):
    value, gradient = derive(lambda z: build_loss("recall_surrogate", k_temperature=t_k)(z, Y), x)
    assert 0 <= value <= 1
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[3], [7, 7, 7], [0, 1, 2]])
def test_nothing_to_learn_from_gives_zero_with_a_graph(build_loss, derive, labels):
    value, gradient = derive(
        lambda z: build_loss("recall_surrogate")(z, torch.tensor(labels)), NOISE[: len(labels)]
    )
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize(
    "wrong", [{"ks": ()}, {"ks": (1, 0)}, {"temperature": 0.0}, {"k_temperature": -1.0}], ids=str
)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        build_loss("recall_surrogate", **wrong)
