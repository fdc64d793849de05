"""Checks of samplers: batches of indices without end, repeatable, and resumable anywhere."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, blaming
from zoo.errors import UserError
from zoo.registry import contracts

_SIZES = (9, 6, 8, 7, 6, 12, 6, 10, 6, 7, 8, 6, 9, 6, 11, 8)  # images of each class
_AFTER_AN_EPOCH = 3  # batches that are drawn beyond one epoch
_MOST = 2000  # batches of an epoch that are drawn at most


def _labels() -> NDArray[np.int64]:
    """Return the classes of the images, in random order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(_SIZES)), _SIZES))


def _build(part: Part, seed: int = 0) -> Any:
    labels = _labels()
    vectors = np.random.default_rng(1).normal(size=(len(labels), 8)).astype(np.float32)
    sampler = part.build(labels=labels, seed=seed, embed=lambda indices: vectors[list(indices)])
    require(contracts.sampler(sampler))
    return sampler


def _batches(sampler: Any, count: int) -> list[list[int]]:
    """Return the next batches, each checked."""
    images = len(_labels())
    found = []
    with blaming("it"):
        for batch in itertools.islice(sampler, count):
            require(contracts.batch(batch, images))
            found.append([int(index) for index in batch])
    if len(found) < count:
        raise CheckFailedError(
            f"it ended after {len(found)} batches; a sampler never ends, one epoch follows the "
            "other",
            "end",
        )
    return found


def _epoch(sampler: Any) -> int:
    """Return the number of batches of an epoch."""
    with blaming("its __len__()"):
        return min(_MOST, len(sampler))


def check_batches(part: Part) -> None:
    """It yields non-empty lists of indices of images."""
    sampler = _build(part)
    _batches(sampler, 20)


def check_endless(part: Part) -> None:
    """It continues after an epoch, which has ``len(sampler)`` batches, at least one."""
    sampler = _build(part)
    length = _epoch(sampler)
    if length < 1:
        raise CheckFailedError(f"its len() is {length}; an epoch has at least one batch", "length")
    _batches(sampler, length + _AFTER_AN_EPOCH)


def check_batch_size(part: Part) -> None:
    """If it has ``batch_size``, every batch has that many images: a loss may rely on it."""
    sampler = _build(part)
    size = getattr(sampler, "batch_size", None)
    if size is None:
        return
    for batch in _batches(sampler, 20):
        if len(batch) != size:
            raise CheckFailedError(
                f"it has batch_size = {size} and gave a batch of {len(batch)}", "size"
            )


def check_two_classes(part: Part) -> None:
    """Batches have images of at least two classes: one class alone has no negatives."""
    labels = _labels()
    for batch in _batches(_build(part), 20):
        if len(set(labels[batch].tolist())) < 2:
            raise CheckFailedError(f"it gave a batch of one class, {batch[:12]}", "classes")


def check_seed(part: Part) -> None:
    """The same seed gives the same batches; if it takes a seed, another seed gives others."""
    first = _batches(_build(part), 10)
    if _batches(_build(part), 10) != first:
        raise CheckFailedError("it gave other batches for the same seed", "seed")
    from zoo.registry.arguments import parameters_of

    takes_seed = any(p.name == "seed" for p in parameters_of(part.target))
    if takes_seed and "seed" not in part.arguments and _batches(_build(part, 1), 10) == first:
        raise CheckFailedError("it gave the same batches for seeds 0 and 1", "seed")


def check_resume(part: Part) -> None:
    """A new sampler that loads its ``state_dict()`` continues with the same batches.

    This is checked in the middle of an epoch, at its end and after it, for as many batches as an
    epoch has, so that the next epoch is also that of a run that was not stopped.
    """
    length = _epoch(_build(part))
    for done in sorted({1, max(1, length // 2), length, length + 1}):
        sampler = _build(part)
        stream: Iterator[Any] = iter(sampler)
        list(itertools.islice(stream, done))
        with blaming("its state_dict()"):
            state = copy.deepcopy(sampler.state_dict())
        require(contracts.plain_state(state))
        wanted = _batches(stream, min(length, 50) + 1)
        other = _build(part)
        with blaming("its load_state_dict()"):
            other.load_state_dict(state)
        if _batches(other, len(wanted)) != wanted:
            raise CheckFailedError(
                f"restored after {done} batches of {length}, it continued with others", "resume"
            )


def check_every_image(part: Part) -> None:
    """In ten epochs every image is drawn, so that none is missing from training.

    A sampler that leaves images out by its definition declares this in ``expected_failures``.
    """
    sampler = _build(part)
    seen = {index for batch in _batches(sampler, 10 * _epoch(sampler)) for index in batch}
    missing = sorted(set(range(len(_labels()))) - seen)
    if missing:
        raise CheckFailedError(
            f"in ten epochs it did not draw {len(missing)} of {len(_labels())} images, such as "
            f"{missing[:5]}",
            "coverage",
        )


def check_too_few_images(part: Part) -> None:
    """With a single image it gives a batch, or refuses at once.

    It refuses by a ``ValueError`` or :class:`zoo.UserError`, not by another exception.
    """
    one = np.zeros(1, np.int64)
    try:
        sampler = part.build(labels=one, seed=0, embed=lambda indices: np.ones((len(indices), 2)))
    except UserError as error:
        if not isinstance(error.__cause__, ValueError | None):
            raise CheckFailedError(str(error), "few") from error
        return
    with blaming("it"):
        require(contracts.batch(next(iter(sampler)), 1), "for a single image")
