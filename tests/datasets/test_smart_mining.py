"""Triplets with negatives that are near among all images, adapted to the network; in loops."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from zoo.datasets import smart_mining
from zoo.datasets.smart_mining import SmartMiningSampler
from zoo.errors import UserError

RNG = np.random.default_rng(0)
SIZES = [5, 2, 9, 1, 4, 7, 6, 3, 8, 5, 1, 6]
OF = RNG.permutation(np.repeat(np.arange(12), SIZES))
LABELS = OF * 3 - 5
CENTRES = RNG.normal(size=(12, 5))


def positions(spread=0.5, seed=1):
    return CENTRES[OF] + spread * np.random.default_rng(seed).normal(size=(len(OF), 5))


def make(x=None, labels=LABELS, **more):
    x = positions() if x is None else x
    return SmartMiningSampler(labels, lambda rows: x[rows], **{"anchors": 8, **more})


def squares(x):
    f = x / np.linalg.norm(x, axis=1, keepdims=True)
    return ((f[:, None] - f) ** 2).sum(2)


def triplets(sampler, batches=None):
    for batch in islice(sampler, batches or len(sampler)):
        yield from np.array(batch).reshape(3, -1).T.tolist()


def test_a_batch_is_anchors_positives_and_negatives_without_repetition():
    for batch in islice(make(nearest=40, effective=0.01), 30):
        anchors, positives, negatives = np.array(batch).reshape(3, 8)
        assert (OF[anchors] == OF[positives]).all()
        assert (OF[anchors] != OF[negatives]).all()
        assert not (anchors == positives).any()
        assert len(set(batch[:8])) == 8
        assert len(set(negatives)) == 8
        assert not set(negatives) & set(batch[:16])


def test_in_an_epoch_every_image_with_another_of_its_class_is_an_anchor():
    sampler = make()
    pairs = {i for i in range(len(OF)) if SIZES[OF[i]] > 1}
    for _ in range(3):
        anchors = [a for a, _, _ in triplets(sampler)]
        assert set(anchors) == pairs
        assert len(anchors) == len(sampler) * 8 < len(pairs) + 8


@pytest.mark.parametrize("block", [1, 300, 1 << 22])
@pytest.mark.parametrize("effective", [0.3, 0.6, 1.0])
def test_negatives_are_among_the_nearest_and_as_many_as_there_may_be(effective, block, monkeypatch):
    """L by loops: with one more, fewer triplets than wanted would violate the margin."""
    monkeypatch.setattr(smart_mining, "_BLOCK_ELEMENTS", block)
    x, margin = positions(), 0.3
    d = squares(x)
    sampler = make(x, effective=effective, margin=margin, nearest=30)
    found = []
    lengths = sampler._length

    def watched(f, anchors, chosen, near, counts):
        found.append((lengths(f, anchors, chosen, near, counts), anchors, chosen))
        return found[-1][0]

    sampler._length = watched
    drawn = list(islice(sampler, len(sampler)))
    ((longest, anchors, chosen),) = found
    shares = []
    for length in range(1, 31):
        violated = []
        for a, p in zip(anchors, chosen, strict=True):
            nearest = sorted(d[a, n] for n in range(len(OF)) if OF[n] != OF[a])[:length]
            violated.append(np.mean([d_an < d[a, p] + margin for d_an in nearest]))
        shares.append(np.mean(violated))
    enough = [length for length in range(1, 31) if shares[length - 1] >= effective]
    assert longest == (enough[-1] if enough else 1)
    outside = 0
    for batch in drawn:
        for a, _, n in np.array(batch).reshape(3, -1).T.tolist():
            negatives = [i for i in range(len(OF)) if OF[i] != OF[a]]
            first = sorted(negatives, key=d[a].__getitem__)[:longest]
            assert n in first or set(first) <= set(batch)  # all of them are there already
            outside += n not in first
    assert outside < len(drawn) * 8 / 2


def test_triplets_get_harder_as_the_network_learns():
    """The better the classes are apart, the nearer are the negatives, in ranks."""
    lengths = []
    for spread in (3.0, 0.7, 0.3, 0.02):
        sampler = make(positions(spread), nearest=50)
        kept = sampler._length
        sampler._length = lambda *given, kept=kept: lengths.append(kept(*given)) or lengths[-1]
        len(sampler)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 20
    assert lengths[-1] == 1


def test_it_goes_on_with_the_triplets_of_its_epoch():
    whole = make(seed=3)
    length = len(whole)
    batches = list(islice(whole, length + 3))
    for stop in (0, 1, length - 1, length):
        first = make(seed=3)
        assert list(islice(first, stop)) == batches[:stop]
        changed = positions(seed=9) if 0 < stop < length else None
        other = make(changed, seed=3)
        other.load_state_dict(first.state_dict())
        assert list(islice(other, length - stop)) == batches[stop:length]
    assert next(iter(other)) == batches[length]
    assert list(islice(make(seed=4), length)) != batches[:length]


def test_asking_changes_nothing():
    sampler, expected = make(), list(islice(make(), 30))
    seen = []
    for batch in islice(sampler, 30):
        seen.append(batch)
        len(sampler)
        sampler.state_dict()
    assert seen == expected


def test_vectors_of_nothing_and_fewer_images_than_a_batch_wants():
    assert all(OF[a] != OF[n] for a, _, n in triplets(make(np.zeros((len(OF), 5)))))
    few = SmartMiningSampler([0, 0, 1], lambda rows: np.eye(3)[rows], anchors=4)
    assert next(iter(few))[8:] == [2] * 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"anchors": 0}, "sampler.anchors=0 and sampler.nearest=64 must be at least 1"),
        ({"nearest": 0}, "sampler.nearest=0 must be at least 1"),
        ({"margin": -0.1}, "sampler.margin=-0.1 must be from 0 to 4"),
        ({"effective": 0.0}, "sampler.effective=0.0 above 0"),
        ({"labels": np.zeros(4, int)}, "the data has 1, of which 1 have two"),
        ({"labels": np.arange(4)}, "the data has 4, of which 0 have two"),
        ({"labels": np.array([], int)}, "the data has 0"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_numbers_out_of_range(wrong, says):
    with pytest.raises(UserError, match=says):
        make(**wrong)
