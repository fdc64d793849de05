"""Batches of anchor classes and their neighbours: nearest, complete, resumed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from zoo.datasets.anchor_neighbours import AnchorNeighboursSampler
from zoo.errors import UserError

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.repeat(np.arange(12) * 3 - 5, [5, 2, 9, 1, 4, 7, 6, 3, 8, 5, 2, 6]))
POSITIONS = RNG.normal(size=(40, 6))[(LABELS + 5) // 3] + 0.2 * RNG.normal(size=(len(LABELS), 6))


def make(positions=POSITIONS, labels=LABELS, **more):
    sizes = {"classes": 6, "per_class": 2, "neighbours": 3, **more}
    return AnchorNeighboursSampler(labels, lambda indices: positions[indices], **sizes)


def distances(positions=POSITIONS):
    """Return the mean squared distance of the images of each two classes, in loops."""
    f = positions / np.linalg.norm(positions, axis=1, keepdims=True)
    classes = sorted(set(LABELS.tolist()))
    of = {c: f[c == LABELS] for c in classes}
    return {
        (p, q): np.mean([((a - b) ** 2).sum() for a in of[p] for b in of[q]])
        for p in classes
        for q in classes
    }


def test_an_anchor_comes_with_its_nearest_classes():
    """Each group of three: an anchor, and the two that are nearest among those not there yet."""
    d = distances()
    sampler, groups = make(), 0
    for batch in islice(sampler, 2 * len(sampler)):
        assert len(batch) == sampler.batch_size == 12
        drawn = LABELS[batch].reshape(6, 2)
        assert (drawn[:, 0] == drawn[:, 1]).all()
        classes = drawn[:, 0].tolist()
        assert len(set(classes)) == 6
        for start in (0, 3):
            anchor, *others = classes[start : start + 3]
            free = {c for _, c in d} - set(classes[: start + 1])
            assert others == sorted(free, key=lambda c: d[anchor, c])[:2]
            groups += 1
    assert groups > 20


def test_an_epoch_has_every_image_and_no_more_passes_than_neighbours():
    sampler = make()
    for _ in range(5):
        batches = list(islice(sampler, len(sampler)))
        drawn = [i for batch in batches for i in batch]
        assert set(drawn) == set(range(len(LABELS)))
        assert len(drawn) <= 3 * len(LABELS) + 12 * 2
        for batch in batches:
            for group in np.array(batch).reshape(6, 2):
                if (LABELS[group[0]] == LABELS).sum() > 1:
                    assert group[0] != group[1]


def test_all_classes_are_anchors():
    sampler = make()
    anchors = {int(LABELS[batch[i]]) for batch in islice(sampler, 100) for i in (0, 6)}
    assert anchors == set(LABELS.tolist())


def test_the_network_is_asked_once_in_an_epoch():
    asked = []

    def embed(indices):
        asked.append(sorted(indices))
        return POSITIONS[indices]

    sampler = AnchorNeighboursSampler(LABELS, embed, classes=4, per_class=2, neighbours=2)
    assert not asked
    list(islice(sampler, len(sampler)))
    assert asked == [list(range(len(LABELS)))]
    next(iter(sampler))
    assert len(asked) == 2


def test_it_goes_on_with_the_neighbours_of_its_epoch():
    """The network has changed when a run is resumed; the epoch was drawn before."""
    whole = make(seed=3)
    length = len(whole)
    batches = list(islice(whole, length + 3))
    for stop in (1, length - 1, length):
        first = make(seed=3)
        assert list(islice(first, stop)) == batches[:stop]
        other = make(-POSITIONS[::-1] if stop < length else POSITIONS, seed=3)
        other.load_state_dict(first.state_dict())
        assert list(islice(other, length - stop)) == batches[stop:length]
    assert next(iter(other)) == batches[length]
    assert list(islice(make(seed=4), length)) != batches[:length]


def test_asking_for_its_length_changes_nothing():
    sampler, expected = make(), list(islice(make(), 30))
    seen = []
    for batch in islice(sampler, 30):
        seen.append(batch)
        len(sampler)
        sampler.state_dict()
    assert seen == expected


def test_vectors_of_nothing_are_taken():
    batch = next(iter(make(np.zeros_like(POSITIONS))))
    assert len(set(LABELS[batch].tolist())) == 6


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"classes": 7}, "sampler.classes=7 must be a multiple of sampler.neighbours=3"),
        ({"neighbours": 1}, "sampler.neighbours=1, which is at least 2"),
        ({"per_class": 0}, "sampler.per_class=0 is at least 1"),
        ({"classes": 15}, "the data has 12; set sampler.classes to at most that"),
        ({"labels": np.array([], int)}, "the data has 0"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_sizes_out_of_range(wrong, says):
    with pytest.raises(UserError, match=says):
        make(**wrong)
