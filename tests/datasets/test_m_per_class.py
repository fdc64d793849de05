"""MPerClassSampler: exact batches, and no image left out."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from zoo.datasets.m_per_class import MPerClassSampler
from zoo.errors import UserError


def skewed(classes, seed):
    return np.random.default_rng(seed).geometric(0.1, classes)


SIZES = {
    "balanced": [12] * 10,
    "not divisible": [7] * 11,
    "as many classes as wanted": [9, 4, 5, 6],
    "ones": [1] * 25,
    "one huge": [200, 3, 3, 2, 5, 4],
    "two huge": [100, 90, 3, 2, 5, 4],
    "fewer than m": [1, 2, 3, 1, 2, 3, 20],
    "skewed": skewed(60, 0),
    "very skewed": skewed(60, 1) ** 2,
}


def labels_of(sizes, seed=0):
    # labels of any value, in any order
    labels = np.repeat(np.arange(len(sizes)) * 3 - 5, sizes)
    return np.random.default_rng(seed).permutation(labels)


@pytest.mark.filterwarnings("ignore:.*fewer than sampler.per_class")
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("per_class", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_epochs(sizes, classes, per_class):
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes, per_class, seed=3)
    groups = [-(-size // per_class) for size in sizes]
    assert len(sampler) == max(-(-sum(groups) // classes), max(groups))
    assert sampler.batch_size == classes * per_class
    for _ in range(2):
        batches = list(islice(sampler, len(sampler)))
        assert set(range(len(labels))) == {i for batch in batches for i in batch}
        for batch in batches:
            drawn = labels[batch].reshape(classes, per_class)
            assert (drawn == drawn[:, :1]).all()
            assert len(set(drawn[:, 0])) == classes
        check_groups(labels, batches, per_class)


def check_groups(labels, batches, per_class):
    sizes = Counter(labels.tolist())
    for batch in batches:
        for start in range(0, len(batch), per_class):
            group = batch[start : start + per_class]
            times = Counter(group)
            size = sizes[labels[group[0]].item()]
            assert len(times) == min(size, per_class)
            assert max(times.values()) - min(times.values()) <= 1


def test_no_image_twice_in_an_epoch_if_all_divides():
    labels = labels_of([12] * 10)
    sampler = MPerClassSampler(labels, 5, 4)
    drawn = [i for batch in islice(sampler, len(sampler)) for i in batch]
    assert sorted(drawn) == list(range(120))


def test_repeats_are_spread():
    """A class that is drawn beyond its images has none drawn twice more than another."""
    labels = labels_of([200, 7, 9])
    sampler = MPerClassSampler(labels, 2, 4)
    times = Counter(i for batch in islice(sampler, len(sampler)) for i in batch)
    for label in set(labels.tolist()):
        counts = [times[i] for i in np.flatnonzero(labels == label)]
        assert max(counts) - min(counts) <= 1


def test_company_changes():
    """Images of a class meet different ones over the epochs, and classes different classes."""
    labels = labels_of([6] * 20)
    sampler = MPerClassSampler(labels, 4, 2)
    batches = list(islice(sampler, 20 * len(sampler)))
    partners = {frozenset(b[i : i + 2]) for b in batches for i in range(0, 8, 2)}
    assert len(partners) > 0.8 * 20 * 15
    classes = {frozenset((a, b)) for batch in batches for a in labels[batch] for b in labels[batch]}
    assert len(classes) == 20 + 190


def test_large_classes_come_throughout_the_epoch():
    """Drawn in proportion to what is left, they are not kept for the end."""
    labels = labels_of([100] * 4 + [10] * 100)
    sampler = MPerClassSampler(labels, 4, 2)
    large = [np.mean([labels[i] < 7 for i in batch]) for batch in islice(sampler, len(sampler))]
    half = len(large) // 2
    assert abs(np.mean(large[:half]) - np.mean(large[half:])) < 0.1


def test_sop():
    rng = np.random.default_rng(0)
    sizes = 2 + rng.multinomial(59551 - 2 * 11318, np.full(11318, 1 / 11318))
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, 90, 2)
    start = time.process_time()
    length = len(sampler)
    assert time.process_time() - start < 1
    batches = list(islice(sampler, length))
    assert length == -(-np.sum(-(-sizes // 2)) // 90)
    assert len({i for batch in batches for i in batch}) == 59551
    assert all(len(set(labels[batch].tolist())) == 90 for batch in batches)


def test_classes_too_small_are_warned_of_once():
    with pytest.warns(UserWarning, match="1 of 3 training classes has fewer .*per_class=3") as said:
        list(islice(MPerClassSampler(labels_of([3, 2, 5]), 2, 3), 20))
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MPerClassSampler(labels_of([3, 2, 5]), 2, 2)


def test_too_few_classes():
    with pytest.raises(UserError, match=r"of 5 classes.* has 3; set sampler\.classes"):
        MPerClassSampler([0, 1, 2, 0], 5, 1)
    with pytest.raises(UserError, match="has 0"):
        MPerClassSampler([], 5, 1)


@pytest.mark.parametrize(("classes", "per_class"), [(1, 2), (0, 2), (2, 0), (2, -1)])
def test_sizes_too_small(classes, per_class):
    with pytest.raises(UserError, match=r"sampler\.classes"):
        MPerClassSampler([0, 1, 2, 0], classes, per_class)


def test_a_batch_beyond_any_use():
    with pytest.raises(UserError, match="a batch of 19,999,998 images is too large"):
        MPerClassSampler([0, 1], 2, 9_999_999)
