"""Facility location: the search against loops and against all sets of medoids."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import normalized_mutual_info_score

from zoo import UserError
from zoo.losses.struct_clust import _Moves, _Search

BATCHES = {"6x4": [4] * 6, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def distances(x):
    f = F.normalize(x)
    return torch.stack([(f - row).norm(dim=1) for row in f])


def assignment(d, medoids):
    found = [min(range(len(medoids)), key=lambda c: float(d[i, medoids[c]])) for i in range(len(d))]
    for place, medoid in enumerate(medoids):
        found[medoid] = place
    return found


def partition(d, medoids):
    """The clusters; two images nearest to each other are equally good medoids of their cluster."""
    found = assignment(d, medoids)
    return {frozenset(i for i, c in enumerate(found) if c == place) for place in found}


def disagreement(d, medoids, y):
    return 1 - normalized_mutual_info_score(y, assignment(d, medoids), average_method="geometric")


def reach(d, medoids):
    return -float(d[:, medoids].min(1).values.sum())


def loops_greedy(d, y, gamma):
    medoids = []
    for _ in range(len(set(y))):
        rest = [i for i in range(len(d)) if i not in medoids]
        medoids.append(
            max(
                rest,
                key=lambda i: reach(d, [*medoids, i]) + gamma * disagreement(d, [*medoids, i], y),
            )
        )
    return medoids


def loops_sweep(d, y, gamma, medoids, sweeps):
    medoids = list(medoids)
    for _ in range(sweeps):
        clusters = assignment(d, medoids)
        for place in range(len(medoids)):
            members = [i for i, c in enumerate(clusters) if c == place]

            def score(j, place=place, members=members):
                swapped = [*medoids[:place], j, *medoids[place + 1 :]]
                inside = float(d[members, j].sum())
                return -inside + gamma * disagreement(d, swapped, y)

            medoids[place] = max(members, key=score)
    return medoids


def score_of(d, medoids, y, gamma):
    return reach(d, medoids) + gamma * disagreement(d, medoids, y)


def loops(x, labels, gamma, sweeps):
    """The loss, its medoids found in loops, with a graph."""
    y = labels.tolist()
    with torch.no_grad():
        d = distances(x)
        medoids = loops_sweep(d, y, gamma, loops_greedy(d, y, gamma), sweeps)
        clusters = assignment(d, medoids)
    f = F.normalize(x)
    total = x.sum() * 0 + gamma * disagreement(d, medoids, y)
    for i in range(len(x)):
        if medoids[clusters[i]] != i:
            total = total - (f[i] - f[medoids[clusters[i]]]).norm()
    for c in set(y):
        members = [i for i in range(len(x)) if y[i] == c]
        best = min(members, key=lambda j: float(d[members, j].sum()))
        for i in members:
            if i != best:
                total = total + (f[i] - f[best]).norm()
    return total.clamp_min(0)


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("gamma", [0.5, 10.0])
@pytest.mark.parametrize("sweeps", [0, 1, pytest.param(5, marks=pytest.mark.slow)])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, gamma, sweeps):
    x, labels = make_batch(sizes, spread=1.5)
    loss = build_loss("struct_clust", gamma=gamma, pam_sweeps=sweeps)
    one = derive(lambda z: loss(z, labels), x)
    other = derive(lambda z: loops(z, labels, gamma, sweeps), x)
    same(one, other, 1e-12)
    assert one[0] > 0


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_the_search_is_never_above_the_optimum_and_sweeps_do_not_hurt(make_batch, seed):
    x, labels = make_batch([4, 4, 4], seed=seed, spread=2.0, dim=3)
    d, y = distances(x), labels.tolist()
    search = _Search(d, labels, 2.0)
    greedy = search.greedy()
    assert partition(d, greedy.tolist()) == partition(d, loops_greedy(d, y, 2.0))
    swept = search.sweep(greedy, 5)
    wanted = loops_sweep(d, y, 2.0, greedy.tolist(), 5)
    assert partition(d, swept.tolist()) == partition(d, wanted)
    assert reach(d, swept.tolist()) == pytest.approx(reach(d, wanted), abs=1e-12)
    best = max(score_of(d, list(m), y, 2.0) for m in itertools.combinations(range(12), 3))
    found = score_of(d, swept.tolist(), y, 2.0)
    assert found <= best + 1e-12
    assert found >= score_of(d, greedy.tolist(), y, 2.0) - 1e-12


def test_nmi_is_that_of_sklearn_with_the_geometric_mean():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        y = torch.randint(0, 5, (30,), generator=generator).unique(return_inverse=True)[1]
        clusters = torch.randint(0, len(y.unique()), (30,), generator=generator)
        found = _Search(torch.zeros(30, 30, dtype=torch.float64), y, 1.0).nmi(clusters)
        wanted = normalized_mutual_info_score(y, clusters, average_method="geometric")
        assert float(found) == pytest.approx(wanted, abs=1e-12)


def test_the_sums_after_moves_are_those_of_counting_anew(make_batch):
    """For each candidate, its images in a cluster of their own; the others where they were."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 7
    assigned = torch.randint(0, 5, (40,), generator=generator)
    moved = torch.rand(40, 9, generator=generator) < torch.linspace(0, 1, 9)
    search = _Search(torch.zeros(40, 40, dtype=torch.float64), y, 1.0)
    for _ in range(2):  # nothing is left in the search from the first time
        found = search._after(assigned, _Moves.where(moved))
        for j in range(9):
            clusters = [5 if moved[i, j] else int(assigned[i]) for i in range(40)]
            cells = list(zip(clusters, y.tolist(), strict=True))
            for got, groups in ((found.clusters[j], clusters), (found.cells[j], cells)):
                wanted = sum(n * math.log(n) for n in Counter(groups).values())
                assert float(got) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.slow
def test_copies_of_an_image_and_a_batch_in_another_order(build_loss, make_batch, derive):
    x, labels = make_batch([3] * 6, spread=2.0)
    x, labels = torch.cat([x, x[:5]]), torch.cat([labels, labels[:5]])
    loss = build_loss("struct_clust", gamma=10.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    wanted, _ = derive(lambda z: loops(z, labels, 10.0, 5), x)
    assert value > 0
    torch.testing.assert_close(value, wanted, atol=1e-7, rtol=0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(derive(lambda z: loss(z, labels[order]), x[order])[0], value)
    assert gradient.isfinite().all()


ZERO = {
    "one_class": (torch.randn(6, 4), torch.zeros(6, dtype=torch.long)),
    "singletons": (torch.randn(6, 4), torch.arange(6)),
    "perfect": (torch.eye(3).repeat_interleave(4, 0), torch.arange(12) // 4),
}


@pytest.mark.parametrize(("x", "labels"), ZERO.values(), ids=ZERO)
def test_zero_with_a_finite_gradient(build_loss, derive, x, labels):
    loss = build_loss("struct_clust", gamma=5.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert float(value) == pytest.approx(0, abs=1e-5)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    "wrong", [{"gamma": -1.0}, {"gamma": float("inf")}, {"gamma": 1.0, "pam_sweeps": -1}]
)
def test_senseless_arguments(build_loss, wrong):
    with pytest.raises(UserError, match="gamma: must be|must be at least 0"):
        build_loss("struct_clust", **wrong)
