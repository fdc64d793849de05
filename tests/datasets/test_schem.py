"""Hard classes by signatures, and hard images of these, step by step in loops."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from zoo.datasets.schem import SCHEMSampler
from zoo.errors import UserError

RNG = np.random.default_rng(0)
SIZES = [5, 2, 9, 1, 4, 7, 6, 3, 8, 5, 2, 6, 4, 4, 7, 3, 5, 6, 2, 8]
OF = RNG.permutation(np.repeat(np.arange(20), SIZES))
LABELS = OF * 3 - 5
POSITIONS = RNG.normal(size=(20, 6))[OF] + 0.3 * RNG.normal(size=(len(OF), 6))
UNIT = POSITIONS / np.linalg.norm(POSITIONS, axis=1, keepdims=True)


def make(positions=POSITIONS, labels=LABELS, **more):
    sizes = {"classes": 4, "per_class": 2, **more}
    return SCHEMSampler(labels, lambda indices: positions[indices], **sizes)


def signatures_of(sampler):
    return sampler.state_dict()["signatures"].numpy()


def test_a_batch_is_as_many_images_of_each_of_some_classes():
    sampler = make(classes=6, per_class=3, anchors=2)
    seen = set()
    for batch in islice(sampler, 100):
        drawn = OF[batch].reshape(6, 3)
        assert (drawn == drawn[:, :1]).all()
        assert len(set(drawn[:, 0])) == 6
        for group in np.array(batch).reshape(6, 3):
            times = np.unique(group, return_counts=True)[1]
            assert len(times) == min(3, SIZES[OF[group[0]]])
        seen |= set(batch)
    assert seen == set(range(len(OF)))


@pytest.mark.parametrize("anchors", [1, 3])
def test_in_an_epoch_every_class_is_an_anchor(anchors):
    sampler = make(classes=6, anchors=anchors)
    assert len(sampler) == -(-20 // anchors)
    orders = []
    for _ in range(2):
        batches = list(islice(sampler, len(sampler)))
        first = [OF[batch].reshape(anchors, -1)[:, 0].tolist() for batch in batches]
        orders.append([c for batch in first for c in batch])
        assert set(orders[-1]) == set(range(20))
        assert all(len(set(batch)) == anchors for batch in first)
    assert orders[0] != orders[1]


def test_classes_come_from_the_pool_that_is_nearest_to_the_anchors():
    """Signatures before the batch, and the update by its anchors, decide the order."""
    sampler = make(momentum=0.25)
    next(iter(sampler))
    ranks = []
    for _ in range(40):
        before = signatures_of(sampler)
        batch = next(iter(sampler))
        anchor, *others = OF[batch].reshape(4, 2)[:, 0]
        assert anchor not in others
        f = UNIT[batch[:2]]
        nearness = (before @ f.T).max(1)  # the anchor's own signature has changed, and is left out
        order = [c for c in np.argsort(-nearness, kind="stable") if c != anchor]
        ranks.append(max(order.index(c) for c in others))
    assert max(ranks) < 15  # alpha is at most 5, for 3 classes
    assert max(ranks) > 8


def test_signatures_follow_the_embeddings_that_were_seen():
    asked = []

    def embed(indices):
        asked.append(list(indices))
        return POSITIONS[indices]

    sampler = SCHEMSampler(LABELS, embed, classes=4, per_class=2, momentum=0.25)
    next(iter(sampler))
    for _ in range(5):
        asked.clear()
        expected = signatures_of(sampler)
        next(iter(sampler))
        assert len(asked) == 2  # the anchors, then the candidates
        for indices in asked:
            for c in set(OF[indices]):
                mean = UNIT[[i for i in indices if OF[i] == c]].mean(0)
                expected[c] = 0.25 * expected[c] + 0.75 * mean
                expected[c] /= np.linalg.norm(expected[c])
        np.testing.assert_allclose(signatures_of(sampler), expected, atol=1e-12)


def test_images_are_among_the_nearest_of_their_class():
    sampler = make(beta=2, per_class=2)
    shares = []
    for batch in islice(sampler, 60):
        anchors = UNIT[batch[:2]]
        for group in np.array(batch[2:]).reshape(3, 2):
            images = np.flatnonzero(OF[group[0]] == OF)
            order = images[np.argsort(-(UNIT[images] @ anchors.T).max(1))].tolist()
            places = [order.index(i) for i in group]
            assert max(places) < 4
            shares.append(max(places) / len(order))
    assert np.mean(shares) < 0.6


def test_classes_are_drawn_by_hardness_once_signatures_are_known():
    """Of ten couples of like classes, an anchor's other half comes far more often than others."""
    positions = np.eye(10)[OF // 2] + 0.05 * RNG.normal(size=(len(OF), 10))
    sampler = make(positions, classes=3)
    list(islice(sampler, 40))
    met = 0
    for batch in islice(sampler, 100):
        classes = OF[batch].reshape(3, 2)[:, 0]
        met += classes[0] // 2 in classes[1:] // 2
    assert met > 20  # 10 of 100 at random: 2 of 19 classes


def test_it_goes_on_from_any_place():
    batches = list(islice(make(seed=3), 50))
    for stop in (0, 1, 7, 25):
        one, other = make(seed=3), make(seed=3)
        assert list(islice(one, stop)) == batches[:stop]
        other.load_state_dict(one.state_dict())
        assert list(islice(other, 9)) == batches[stop : stop + 9]
    assert list(islice(make(seed=4), 9)) != batches[:9]


def test_vectors_of_nothing_and_large_classes():
    batch = next(iter(make(np.zeros_like(POSITIONS))))
    assert len(set(OF[batch])) == 4
    asked = []
    sampler = SCHEMSampler(
        LABELS,
        lambda rows: (asked.append(rows), POSITIONS[rows])[1],
        classes=4,
        per_class=2,
        most=3,
    )
    list(islice(sampler, 30))
    for rows in asked:
        assert np.bincount(OF[rows]).max() <= 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"classes": 7, "anchors": 2}, "sampler.classes=7 must be a multiple of sampler.anchors=2"),
        ({"classes": 2, "anchors": 2}, "and more"),
        ({"anchors": 0}, "anchors are at least 1"),
        ({"per_class": 0}, "sampler.per_class=0"),
        ({"classes": 21}, "the data has 20; set sampler.classes to at most that"),
        ({"beta": 0}, "sampler.beta=0 must be at least 1"),
        ({"most": 1}, "sampler.most=1 at least per_class"),
        ({"momentum": 1.0}, "sampler.momentum=1.0 from 0 to below 1"),
        ({"seed": -1}, "seed=-1 not negative"),
        ({"labels": np.array([], int)}, "the data has 0"),
    ],
)
def test_numbers_out_of_range(wrong, says):
    with pytest.raises(UserError, match=says):
        make(**wrong)
