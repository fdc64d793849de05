"""Batches of classes that the network confuses, against loops; resumed, refused, used in a run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import zoo
from zoo import UserError, runner
from zoo.config import load
from zoo.miners.hard_class import HardClassSampler, _greedy, _violations
from zoo.progress import Reporter
from zoo.training import experiment
from zoo.training import step as training_step

LABELS = np.repeat(np.arange(10) * 7 - 3, [4, 2, 3, 5, 1, 2, 6, 1, 4, 2])  # two of one image
RNG = np.random.default_rng(0)
POSITIONS = RNG.normal(size=(len(LABELS), 5))


def make(labels=LABELS, embed=lambda indices: POSITIONS[indices], **more):
    return HardClassSampler(labels, embed, **{"classes": 4, **more})


def test_a_batch_is_pairs_of_different_classes():
    sampler = make(pool=8)
    seen = set()
    for batch in itertools.islice(sampler, 60):
        assert len(batch) == len(set(batch)) == 8
        of_pairs = LABELS[batch].reshape(4, 2)
        assert (of_pairs[:, 0] == of_pairs[:, 1]).all()
        assert len(set(of_pairs[:, 0])) == 4
        seen |= set(batch)
    assert seen == {i for i in range(len(LABELS)) if (LABELS[i] == LABELS).sum() > 1}


def test_violations_equal_the_loops():
    pairs = RNG.normal(size=(6, 2, 5))
    f = pairs / np.linalg.norm(pairs, axis=2, keepdims=True)
    found = _violations(pairs)
    for a, b in itertools.permutations(range(6), 2):
        wanted = max(
            f[one, i] @ f[other, j] - f[one, 0] @ f[one, 1]
            for one, other in ((a, b), (b, a))
            for i in (0, 1)
            for j in (0, 1)
        )
        assert found[a, b] == pytest.approx(wanted)


def test_the_choice_equals_the_loops():
    hardness = RNG.normal(size=(9, 9))
    hardness = np.maximum(hardness, hardness.T)
    chosen = [0]
    while len(chosen) < 5:
        rest = [c for c in range(9) if c not in chosen]
        chosen.append(max(rest, key=lambda c: max(hardness[c, s] for s in chosen)))
    assert _greedy(hardness, 5) == chosen


def test_confused_classes_meet():
    """Of eight classes in four confused couples, a batch of two is a couple, always."""
    labels = np.repeat(np.arange(8), 3)
    positions = np.eye(4)[labels // 2] + 0.01 * RNG.normal(size=(24, 4))
    sampler = make(labels, lambda indices: positions[indices], classes=2, pool=8)
    for batch in itertools.islice(sampler, 20):
        assert len(set(labels[batch] // 2)) == 1
        assert len(set(labels[batch])) == 2


def test_it_goes_on_from_any_place():
    batches = list(itertools.islice(make(seed=3), 9))
    one, other = make(seed=3), make(seed=3)
    assert list(itertools.islice(one, 4)) == batches[:4]
    other.load_state_dict(one.state_dict())
    assert list(itertools.islice(other, 5)) == batches[4:]
    assert list(itertools.islice(make(seed=4), 9)) != batches


def test_vectors_of_nothing_are_taken():
    batch = next(iter(make(embed=lambda indices: np.zeros((len(indices), 5)))))
    assert len(set(batch)) == 8


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"classes": 1}, "from 2 to the number of classes with two images or more, 8"),
        ({"classes": 9}, "from 2 to the number of classes with two images or more, 8"),
        ({"pool": 3}, "sampler.pool is 3; it must be at least sampler.classes, 4"),
        ({"seed": -1}, "must not be negative"),
        ({"labels": np.arange(9)}, "two images or more, 0"),
    ],
)
def test_sizes_out_of_range(wrong, says):
    with pytest.raises(UserError, match=says):
        make(**wrong)


@pytest.mark.slow
def test_in_a_run_the_network_as_it_is_chooses(tmp_path, monkeypatch):
    """A stopped run sees the batches it would have seen; a new network would choose others."""
    settings = [
        "loss=npair_mc",
        "sampler={name: hard_class, classes: 6, pool: 12}",
        "model.backbone.width=4",
        "model.embedding_size=16",
        "train.iterations=8",
        "train.checkpoint_every=3",
        "device=cpu",
    ]
    whole = load("ice_glyphs", [*settings, f"output={tmp_path}/a"])
    parts = load("ice_glyphs", [*settings, f"output={tmp_path}/b", "train.workers=2"])
    seen: list[list[int]] = []
    step = training_step.Trainer.step

    def watched(self, batch):
        if stop == batch.iteration:
            raise MemoryError
        seen.append(batch.indices)
        step(self, batch)

    monkeypatch.setattr(training_step.Trainer, "step", watched)
    stop = None
    quiet = Reporter(quiet=True)
    wanted = runner.run(whole, reporter=quiet)
    batches, seen = seen, []
    stop = 5
    with pytest.raises(MemoryError):
        runner.run(parts, reporter=quiet)
    stop = None
    assert runner.run(parts, reporter=quiet)["recall"] == wanted["recall"]
    assert seen[:5] == batches[:5]
    assert seen[5:] == batches[3:]
    fresh = experiment.assemble(whole)
    assert next(iter(fresh.sampler)) == batches[0]
    assert list(itertools.islice(fresh.sampler, 7)) != batches[1:]


def test_it_is_a_sampler_of_the_zoo():
    assert "hard_class" in zoo.names("samplers")
