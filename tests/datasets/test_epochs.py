"""The base of the samplers: where it stands is known after every batch."""

from __future__ import annotations

import pickle
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

from zoo.datasets._epochs import EpochBatches
from zoo.datasets.m_per_class import MPerClassSampler
from zoo.datasets.shuffle import ShuffleSampler
from zoo.errors import UserError

LABELS = np.repeat(np.arange(7), [2, 3, 4, 5, 6, 7, 11])

MAKERS = {
    "m_per_class": lambda seed=0: MPerClassSampler(LABELS, 3, 2, seed=seed),
    "shuffle": lambda seed=0: ShuffleSampler(LABELS, 6, seed=seed),
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def take(sampler, count):
    return list(islice(iter(sampler), count))


def test_goes_on_from_any_place(make):
    straight = make()
    length = len(straight)
    expected = take(straight, 3 * length + 1)
    for stop in range(2 * length + 1):
        first = make()
        assert take(first, stop) == expected[:stop]
        state = first.state_dict()
        assert state == {"epoch": stop // length, "batch": stop % length}
        second = make()
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert take(second, length + 1) == expected[stop : stop + length + 1]


def test_state_says_the_next_batch_while_iterating(make):
    sampler = make()
    expected = take(make(), 2 * len(sampler))
    for i, _ in enumerate(islice(sampler, 2 * len(sampler) - 1)):
        other = make()
        other.load_state_dict(sampler.state_dict())
        assert next(iter(other)) == expected[i + 1]


def test_second_iterator_goes_on(make):
    sampler = make()
    first, second = iter(sampler), iter(sampler)
    mixed = [next(first), next(second), next(first), next(second)]
    assert mixed == take(make(), 4)


def test_asking_changes_nothing(make):
    sampler = make()
    expected = take(make(), 20)
    seen = []
    for batch in islice(sampler, 20):
        seen.append(batch)
        assert len(sampler) == len(make())
        sampler.state_dict()
    assert seen == expected


def test_loading_in_the_middle_of_an_epoch(make):
    sampler = make()
    expected = take(sampler, 2)
    sampler.load_state_dict({"epoch": 0, "batch": 0})
    assert take(sampler, 2) == expected


def test_epochs_and_seeds_differ(make):
    sampler = make()
    epochs = [take(sampler, len(sampler)) for _ in range(3)]
    epochs.append(take(make(1), len(sampler)))
    assert all(a != b for i, a in enumerate(epochs) for b in epochs[:i])
    assert take(make(1), 5) == take(make(1), 5)


def test_global_random_state_does_not_matter(make):
    np.random.seed(0)
    first = take(make(), 5)
    np.random.seed(1)
    assert take(make(), 5) == first


def test_pickles(make):
    sampler = make()
    take(sampler, 3)
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.state_dict() == sampler.state_dict()
    assert take(copy, 20) == take(sampler, 20)


@pytest.mark.parametrize("workers", [0, 1])
def test_as_batch_sampler(make, workers):
    sampler = make()
    loader = DataLoader(LABELS, batch_sampler=sampler, num_workers=workers)
    assert len(loader) == len(sampler)
    batches = [batch.tolist() for batch in islice(loader, 2 * len(sampler))]
    expected = [LABELS[batch].tolist() for batch in take(make(), 2 * len(sampler))]
    assert batches == expected


def test_plain_ints(make):
    sampler = make()
    assert {type(i) for batch in take(sampler, 5) for i in batch} == {int}
    assert sampler.batch_size == 6 == len(next(iter(sampler)))


@pytest.mark.parametrize("state", [{"epoch": 3, "batch": 100}, {"epoch": 3, "batch": -1}])
def test_state_of_other_data(make, state):
    with pytest.raises(UserError, match="other data"):
        make().load_state_dict(state)


def test_negative_seed(make):
    with pytest.raises(UserError, match="-1"):
        make(-1)


def test_a_subclass_writes_one_method():
    class Backwards(EpochBatches):
        def _epoch(self, rng):
            yield [3, 2]
            yield [1, int(rng.integers(5, 100))]

    sampler = Backwards(batch_size=2, seed=0)
    assert len(sampler) == 2
    batches = take(sampler, 4)
    assert batches[0] == batches[2] == [3, 2]
    assert sampler.state_dict() == {"epoch": 2, "batch": 0}
