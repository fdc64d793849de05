"""Pairs that a miner returns more than once: where they count as often, and where once."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss

import zoo

MEANS = ["contrastive", "binomial_deviance", "snr", "histogram"]
MEANS_OF_POSITIVES = ["triplet_semihard", "lifted_struct", "ntxent", "angular"]
SETS = ["multi_similarity", "circle", "supcon", "nca", "matching_net", "ice", "rll"]
SIZES = [6] * 6


@pytest.fixture
def drawn(make_batch):
    """A batch, and pairs of it that are drawn with replacement."""
    x, labels = make_batch(SIZES, length=0.3)
    torch.manual_seed(0)
    pairs = zoo.build("miners", "uniform_histogram")(x, labels)
    different = len({(int(a), int(p)) for a, p in zip(*pairs[:2], strict=True)})
    assert different < len(pairs[0]) / 2
    return x, labels, pairs


def repeated(pairs, positives=1, negatives=1):
    """The list of pairs with its first positive and negative pair that often."""
    a1, p, a2, n = pairs

    def more(part, times):
        return torch.cat([part, part[:1].repeat(times - 1)])

    return more(a1, positives), more(p, positives), more(a2, negatives), more(n, negatives)


def without_repetition(pairs):
    a1, p, a2, n = pairs
    return *torch.stack([a1, p], 1).unique(dim=0).T, *torch.stack([a2, n], 1).unique(dim=0).T


def mean(terms):
    terms = list(terms)
    return sum(terms) / len(terms) if terms else 0.0


def contrastive(x, a1, p, a2, n):
    f = F.normalize(x)
    near = [1 - float((f[a] - f[b]).norm()) for a, b in zip(a2, n, strict=True)]
    pull = mean(float((f[a] - f[b]).square().sum()) / 2 for a, b in zip(a1, p, strict=True))
    return pull + mean(h * h / 2 for h in near if h > 0)


def binomial_deviance(x, a1, p, a2, n):
    f = F.normalize(x)
    pull = mean(math.log1p(math.exp(-2 * (f[a] @ f[b] - 0.5))) for a, b in zip(a1, p, strict=True))
    return pull + mean(
        math.log1p(math.exp(50 * (f[a] @ f[b] - 0.5))) for a, b in zip(a2, n, strict=True)
    )


def snr(x, a1, p, a2, n):
    def distance(a, b):
        return float((x[b] - x[a]).var() / x[a].var())

    short = [1 - distance(a, b) for a, b in zip(a2, n, strict=True)]
    sums = 0.005 * mean(abs(float(row.sum())) for row in x)
    pull = mean(distance(a, b) for a, b in zip(a1, p, strict=True))
    return pull + mean(h for h in short if h > 0) + sums


def histogram(x, a1, p, a2, n):
    f, bins = F.normalize(x), 100
    counts = {True: [0.0] * (bins + 1), False: [0.0] * (bins + 1)}
    for same, left, right in ((True, a1, p), (False, a2, n)):
        for a, b in zip(left, right, strict=True):
            place = (float(f[a] @ f[b]) + 1) * bins / 2
            low = int(place)
            counts[same][low] += (low + 1 - place) / len(left)
            counts[same][low + 1] += (place - low) / len(left)
    return sum(counts[False][r] * sum(counts[True][: r + 1]) for r in range(bins + 1))


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_pairs_is_over_the_list_that_was_mined(build_loss, drawn, name):
    x, labels, pairs = drawn
    loss = build_loss(name)
    value = float(loss(x, labels, pairs))
    assert value == pytest.approx(globals()[name](x, *pairs), rel=1e-9)
    assert value != pytest.approx(float(loss(x, labels, without_repetition(pairs))), rel=1e-3)


@pytest.mark.parametrize("name", MEANS_OF_POSITIVES)
def test_a_mean_over_positive_pairs_is_over_their_list(build_loss, drawn, name):
    x, labels, pairs = drawn
    once = without_repetition(pairs)
    loss, number = build_loss(name), len(once[0])
    every = loss(x, labels, once)
    first = loss(x, labels, (once[0][:1], once[1][:1], *once[2:]))
    wanted = (number * every + 3 * first) / (number + 3)
    torch.testing.assert_close(loss(x, labels, repeated(once, positives=4)), wanted)
    assert wanted != pytest.approx(float(every), rel=1e-6)
    torch.testing.assert_close(loss(x, labels, repeated(once, negatives=4)), every)


@pytest.mark.parametrize("name", SETS)
def test_what_is_about_sets_of_images_counts_a_pair_once(build_loss, drawn, name):
    x, labels, pairs = drawn
    once = without_repetition(pairs)
    loss = build_loss(name)
    torch.testing.assert_close(loss(x, labels, pairs), loss(x, labels, once))


def test_the_margin_loss_counts_triplets_as_often_as_pairs_form_them(build_loss, drawn):
    x, labels, (a1, p, a2, n) = drawn
    a1, p, a2, n = a1[:60], p[:60], a2[:60], n[:60]
    triplets = [
        (a, b, c)
        for a, b in zip(a1.tolist(), p.tolist(), strict=True)
        for d, c in zip(a2.tolist(), n.tolist(), strict=True)
        if a == d
    ]
    assert len(set(triplets)) < len(triplets)
    loss = build_loss("margin", beta=0.9, learn_beta=False).double()
    of_triplets = loss(x, labels, tuple(torch.tensor(triplets).T))
    torch.testing.assert_close(loss(x, labels, (a1, p, a2, n)), of_triplets)
    once = tuple(torch.tensor(sorted(set(triplets))).T)
    assert loss(x, labels, once) != pytest.approx(float(of_triplets), rel=1e-3)


def test_triplets_stand_for_their_pairs_as_in_pml(build_loss, drawn):
    """With one triplet for each negative, its positive pair is there as often."""
    x, labels, _ = drawn
    triplets = zoo.build("miners", "semihard", margin=0.3)(x, labels)
    a, p, n = triplets
    pairs = (a, p, a, n)
    for name in (*MEANS, *MEANS_OF_POSITIVES, *SETS):
        loss = build_loss(name)
        torch.testing.assert_close(loss(x, labels, triplets), loss(x, labels, pairs))
    f = F.normalize(x)
    hinge = (1 - (f[a] - f[n]).norm(dim=1)).clamp_min(0)
    mine = (f[a] - f[p]).square().sum(1).mean() / 2 + hinge[hinge > 0].square().mean() / 2
    torch.testing.assert_close(build_loss("contrastive")(x, labels, triplets), mine)
    theirs = ContrastiveLoss()(x, labels, triplets)
    torch.testing.assert_close((f[a] - f[p]).norm(dim=1).mean() + hinge[hinge > 0].mean(), theirs)


def test_positives_that_are_mined_twice_count_as_in_pmls_ntxent(build_loss, drawn):
    x, labels, pairs = drawn
    a1, p = pairs[:2]
    every = zoo.build("miners", "hdc", fraction=1.0)(x, labels)
    mined = (a1, p, *every[2:])
    torch.testing.assert_close(
        build_loss("ntxent")(x, labels, mined), NTXentLoss(temperature=0.1)(x, labels, mined)
    )


@pytest.mark.parametrize("name", [*MEANS, *MEANS_OF_POSITIVES, "margin"])
def test_counts_have_no_gradient_of_their_own_and_empty_lists_give_nothing(
    build_loss, drawn, derive, name
):
    x, labels, pairs = drawn
    loss = build_loss(name).double()
    _, gradient = derive(lambda z: loss(z, labels, pairs), x)
    assert torch.isfinite(gradient).all()
    none = torch.zeros(0, dtype=torch.long)
    value, gradient = derive(lambda z: loss(z, labels, (none, none, none, none)), x)
    sums = 0.005 * x.sum(1).abs().mean() if name == "snr" else 0.0  # which needs no pairs
    assert float(value) == pytest.approx(float(sums))
    assert torch.isfinite(gradient).all()
