"""The best ranking by dynamic programming against an enumeration of all rankings."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from zoo.losses import _ap_inference
from zoo.losses._ap_inference import Lists
from zoo.losses._shared import Masks

WEIGHTS = [-5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0]


def f_and_loss(order, scores, good):
    """Return F and 1 - AP of a ranking, from its pairs and its precisions."""
    place = {k: i for i, k in enumerate(order)}
    p, n = [k for k in order if k in good], [k for k in order if k not in good]
    f = sum((1 if place[i] < place[j] else -1) * (scores[i] - scores[j]) for i in p for j in n)
    precisions = [sum(place[i] <= place[k] for i in p) / (place[k] + 1) for k in p]
    return f / len(p) / len(n), 1 - sum(precisions) / len(p)


def best(scores, good, weight, rankings):
    def value(order):
        f, loss = f_and_loss(order, scores, good)
        return f + weight * loss

    return max(map(value, rankings))


def interleavings(scores, good):
    """Yield the rankings in which each kind is sorted."""
    keys = sorted(range(len(scores)), key=lambda k: -scores[k])
    p, n = [k for k in keys if k in good], [k for k in keys if k not in good]
    for places in itertools.combinations(range(len(keys)), len(p)):
        left, right = iter(p), iter(n)
        yield [next(left) if i in places else next(right) for i in range(len(keys))]


def lists_of(rows, goods):
    """Return the lists of anchors whose scores may be of different number."""
    m = max(map(len, rows))
    scores = torch.zeros(len(rows), m, dtype=torch.float64)
    positive, negative = torch.zeros(2, len(rows), m, dtype=torch.bool)
    for a, (row, good) in enumerate(zip(rows, goods, strict=True)):
        scores[a, : len(row)] = torch.tensor(row, dtype=torch.float64)
        for k in range(len(row)):
            (positive if k in good else negative)[a, k] = True
    return Lists.of(scores, Masks(positive, negative))


def found(lists, weight):
    above = lists.maximise(weight)
    number = lists.valid.sum(1)
    for row, last in zip(above.tolist(), number.tolist(), strict=True):
        assert row[:last] == sorted(row[:last])  # a ranking
    return (lists.score(above) + weight * lists.loss(above)).tolist()


def draw(chance, ties):
    score = chance.uniform(-1, 1)
    return round(score, 1) if ties else score


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("p", "n"), [(1, 1), (1, 3), (3, 1), (2, 3), (3, 2)])
def test_it_is_the_best_of_all_permutations(weight, ties, p, n):
    chance = random.Random(p + 10 * n)
    rows = [[draw(chance, ties) for _ in range(p + n)] for _ in range(10)]
    goods = [set(chance.sample(range(p + n), p)) for _ in rows]
    orders = list(itertools.permutations(range(p + n)))
    wanted = [best(row, good, weight, orders) for row, good in zip(rows, goods, strict=True)]
    assert found(lists_of(rows, goods), weight) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_it_is_the_best_of_all_interleavings_of_longer_lists(weight):
    chance = random.Random(1)
    rows = [[draw(chance, False) for _ in range(10)] for _ in range(5)]
    goods = [set(chance.sample(range(10), p)) for p in (1, 3, 4, 6, 9)]
    wanted = [
        best(row, good, weight, interleavings(row, good))
        for row, good in zip(rows, goods, strict=True)
    ]
    assert found(lists_of(rows, goods), weight) == pytest.approx(wanted, abs=1e-12)


def test_the_independent_choice_of_each_positive_is_not_a_ranking():
    """Without n_i <= n_{i+1} the maximum would be higher: the programme is needed."""
    rows, goods = [[0.82, 0.85, 0.73, -0.6, 0.21, 0.06]], [{0, 1, 2}]
    lists = lists_of(rows, goods)
    n, free = torch.arange(4).double(), 0.0
    for i, s in enumerate(lists.positives[0]):
        in_f = ((3 - 2 * n) * s - lists.sums[0, -1] + 2 * lists.sums[0, :4]) / 9
        free += float((in_f + n / (i + 1 + n) / 3).max())
    assert found(lists, 1.0)[0] < free - 0.02


def test_lists_of_different_lengths_do_not_touch_each_other():
    chance = random.Random(2)
    sizes = [(2, 5), (4, 1), (0, 3), (3, 0), (1, 1), (5, 4)]
    rows = [[draw(chance, False) for _ in range(p + n)] for p, n in sizes]
    goods = [set(range(p)) for p, _ in sizes]
    for weight in WEIGHTS:
        alone = [found(lists_of([r], [g]), weight)[0] for r, g in zip(rows, goods, strict=True)]
        assert found(lists_of(rows, goods), weight) == pytest.approx(alone, abs=1e-14)


@pytest.mark.parametrize("weight", [-1.0, 1.0])
def test_neither_blocks_nor_spare_places_change_anything(monkeypatch, weight):
    """Where the number of positives is not known, there is a place for each image."""
    chance = random.Random(3)
    rows = [[draw(chance, False) for _ in range(8)] for _ in range(7)]
    goods = [set(chance.sample(range(8), p)) for p in (1, 2, 3, 4, 5, 6, 7)]
    wanted = found(lists_of(rows, goods), weight)
    monkeypatch.setattr(_ap_inference, "_BLOCK_ELEMENTS", 100)
    assert found(lists_of(rows, goods), weight) == wanted
    monkeypatch.setattr(_ap_inference, "most_positives", lambda positive: positive.shape[1])
    assert found(lists_of(rows, goods), weight) == pytest.approx(wanted, abs=1e-15)


def test_the_ranking_by_score_maximises_f_and_has_its_average_precision():
    chance = random.Random(4)
    rows = [[draw(chance, False) for _ in range(9)] for _ in range(6)]
    goods = [set(chance.sample(range(9), p)) for p in (1, 2, 3, 5, 7, 8)]
    lists = lists_of(rows, goods)
    above = lists.sorted_by_score()
    for a, (row, good) in enumerate(zip(rows, goods, strict=True)):
        f, loss = f_and_loss(sorted(range(9), key=lambda k, row=row: -row[k]), row, good)
        assert float(lists.score(above)[a]) == pytest.approx(f, abs=1e-14)
        assert float(lists.loss(above)[a]) == pytest.approx(loss, abs=1e-14)
    assert found(lists, 0.0) == pytest.approx(lists.score(above).tolist(), abs=1e-14)
