"""The cascade of HDC against loops, and against the miner of one of its levels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError

SIZES = [5, 4, 7]


def build(level_sizes=SIZES, **arguments):
    return zoo.build("losses", "hdc_cascade", level_sizes=list(level_sizes), **arguments)


def kept_pairs(distances, labels, fractions):
    """The pairs of each level and kind, in sets; distances are those of all levels."""
    n = len(labels)
    every = {kind: set() for kind in (True, False)}
    for a in range(n):
        for b in range(a + 1, n):
            every[bool(labels[a] == labels[b])].add((a, b))
    kept, levels = dict(every), []
    for k, fraction in enumerate(fractions):
        by = distances[max(0, k - 1)]
        kept = {
            kind: set(
                sorted(pairs, key=lambda p: float(by[p].detach()) * (-1 if kind else 1))[
                    : math.ceil(fraction * len(every[kind]) - 1e-9)
                ]
            )
            for kind, pairs in kept.items()
        }
        levels.append(kept)
    return levels


def loops(x, labels, fractions=(1.0, 0.5, 0.2), margin=1.0, sizes=SIZES):
    distances = []
    for level in x.split(list(sizes), 1):
        f = F.normalize(level)
        distances.append((f[:, None] - f).square().sum(2))
    total = 0
    for d, kept in zip(distances, kept_pairs(distances, labels, fractions), strict=True):
        terms = [d[p] for p in kept[True]] + [F.relu(margin - d[p]) for p in kept[False]]
        terms = [t for t in terms if t > 0]
        total = total + (torch.stack(terms).mean() if terms else 0)
    return total


@pytest.mark.parametrize("sizes", [[4] * 4, [2, 5, 1, 3], [6], [1] * 5])
@pytest.mark.parametrize(
    "settings", [{}, {"fractions": [0.7, 0.7, 0.1], "margin": 1.7}, {"fractions": [1.0, 1.0, 1.0]}]
)
def test_value_and_gradient_equal_the_loops(make_batch, derive, same, sizes, settings):
    x, labels = make_batch(sizes)
    wanted = derive(lambda z: loops(z, labels, **settings), x)
    same(derive(lambda z: build(**settings)(z, labels), x), wanted, 1e-12)
    assert wanted[1].abs().max() > 1e-6


def test_a_level_sees_what_the_miner_picks_in_the_level_before(make_batch, derive):
    x, labels = make_batch([4] * 4)
    first, second = x.split([8, 8], 1)
    loss = build([8, 8], fractions=[1.0, 0.5], margin=2.0)
    mined = zoo.build("miners", "hdc", fraction=0.5)(first, labels)
    f = F.normalize(second)
    terms = []
    for a, p in zip(*mined[:2], strict=True):
        terms += [(f[a] - f[p]).square().sum()] * int(a < p)  # it picks a pair from either end
    for a, n in zip(*mined[2:], strict=True):
        terms += [F.relu(2 - (f[a] - f[n]).square().sum())] * int(a < n)
    terms = torch.stack(terms)
    wanted = terms.sum() / (terms > 0).sum()
    alone = build([8], fractions=[1.0], margin=2.0)(first, labels)
    torch.testing.assert_close(loss(x, labels) - alone, wanted)


def test_the_pairs_of_a_level_are_among_those_of_the_level_before(make_batch):
    x, labels = make_batch([4] * 4)
    distances = [torch.cdist(F.normalize(p), F.normalize(p)) for p in x.split(SIZES, 1)]
    levels = kept_pairs(distances, labels, (1.0, 0.5, 0.2))
    assert [len(level[True]) for level in levels] == [24, 12, 5]
    assert [len(level[False]) for level in levels] == [96, 48, 20]
    assert levels[2][True] < levels[1][True] < levels[0][True]


def test_fractions_of_one_are_contrastive_learning_in_each_level(make_batch):
    x, labels = make_batch([3, 4, 2])
    parts = zip(SIZES, x.split(SIZES, 1), strict=True)
    wanted = sum(build([size], fractions=[1.0])(part, labels) for size, part in parts)
    torch.testing.assert_close(build(fractions=[1.0] * 3)(x, labels), wanted)


def test_equal_pairs_stay_together():
    """Of four equally hard positives, half would be two; all four train the second level."""
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    second = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    x, labels = torch.cat([first, second], 1).double(), torch.tensor([0, 0, 0, 0])
    loss = build([2, 2], fractions=[1.0, 0.5])
    # The level before has distances 2 four times and 0 twice; its second half has 2, 2, 2, 2.
    assert float(loss(x, labels)) == pytest.approx(2 + 2)


def test_a_share_is_not_rounded_up_by_the_error_of_a_product(make_batch, derive, same):
    x, labels = make_batch([5, 5])  # 25 negative pairs, of which 28 % are 7
    assert math.ceil(0.28 * 25) == 8
    settings = {"fractions": [1.0, 0.28, 0.28], "margin": 4.0}
    wanted = derive(lambda z: loops(z, labels, **settings), x)
    same(derive(lambda z: build(**settings)(z, labels), x), wanted, 1e-12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"fractions": [1.0, 0.5]}, "one for each of the 3 levels, and there are only 2"),
        ({"fractions": [0.5, 1.0, 0.2]}, "not grow"),
        ({"fractions": [1.0, 0.5, 0.0]}, "above 0"),
        ({"margin": 0.0}, "margin must be positive"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
