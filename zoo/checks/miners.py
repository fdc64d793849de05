"""Checks of miners: the form of their result, and that it fits the labels on any batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.checks import batches
from zoo.checks.batches import TrialBatch
from zoo.checks.compare import hold
from zoo.checks.outcomes import unless
from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, blaming
from zoo.registry import contracts


def _mine(part: Part, batch: TrialBatch, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return the result of a new miner on a batch; the seed decides its random numbers."""
    miner = part.build()
    require(contracts.module(miner))
    with torch.random.fork_rng(devices=[]), blaming("it"):
        torch.manual_seed(seed)
        return miner(batch.x.to(dtype), batch.y)


def _on_batches(test: Callable[[TrialBatch], None]) -> None:
    for batch in batches.general():
        hold(test, batch)


def check_form(part: Part) -> None:
    """It gives a tuple of three or four int64 tensors of indices.

    Triplets are (anchors, positives, negatives), all of one length; pairs are (anchors, positives,
    anchors, negatives), each two of one length.
    """
    _on_batches(lambda batch: require(contracts.mined(_mine(part, batch), len(batch.y))))


def check_labels(part: Part) -> None:
    """Positives are two images of one class; negatives are of different classes.

    Otherwise a loss pulls together images that should be apart, and no error shows it.
    """
    _on_batches(lambda batch: require(contracts.mined(_mine(part, batch), len(batch.y), batch.y)))


def _require_valid(part: Part, batch: TrialBatch) -> None:
    require(contracts.mined(_mine(part, batch), len(batch.y), batch.y))


def check_one_class(part: Part) -> None:
    """A batch of a single class has no negatives: it gives empty tensors, and does not fail."""
    hold(lambda batch: _require_valid(part, batch), batches.clusters(1, 6, seed=4))


def check_single_images(part: Part) -> None:
    """Classes of one image each have no positives: it gives empty tensors, and does not fail."""
    hold(lambda batch: _require_valid(part, batch), batches.clusters(6, 1, seed=5))


def check_equal_embeddings(part: Part) -> None:
    """Equal embeddings, as those of a collapsed network, give a valid result."""
    batch = batches.clusters(3, 4, seed=6)
    same = TrialBatch(batch.x[:1].expand_as(batch.x).clone(), batch.y)
    hold(lambda smaller: _require_valid(part, smaller), same)


def check_half_precision(part: Part) -> None:
    """Embeddings in bfloat16 and float16, which training may use, are mined like others."""
    for dtype in (torch.bfloat16, torch.float16):
        for batch in batches.general():
            given = _mine(part, batch, dtype)
            require(
                contracts.mined(given, len(batch.y), batch.y), f"in {dtype},".replace("torch.", "")
            )


def _is_random(part: Part) -> str | None:
    """Not applicable to one that declares that it draws random numbers, ``random = True``."""
    return "it draws random numbers" if part.traits.random else None


@unless(_is_random)
def check_determinism(part: Part) -> None:
    """Two calls give the same result, whatever the state of the random numbers.

    A miner that draws random numbers from torch's generator is repeatable by the seed of the run;
    it declares ``random = True``.
    """

    def same(batch: TrialBatch) -> None:
        one, other = (_as_sets(_mine(part, batch, seed=seed), batch.y) for seed in (0, 1))
        if one != other:
            raise CheckFailedError("it gave two results for one batch", "determinism")

    _on_batches(same)


@unless(_is_random)
def check_permutation(part: Part) -> None:
    """The order of the images in the batch does not matter: the same pairs are found."""

    def same(batch: TrialBatch) -> None:
        order = torch.randperm(len(batch.y), generator=batches.generator(7))
        other = _mine(part, batch.rows(order))
        moved = tuple(order[tensor] for tensor in other)
        if _as_sets(_mine(part, batch), batch.y) != _as_sets(moved, batch.y):
            raise CheckFailedError("it gave other pairs for another order of the images", "order")

    _on_batches(same)


def check_leaves_inputs(part: Part) -> None:
    """Embeddings and labels are not changed in place: the loss needs them next."""

    def untouched(batch: TrialBatch) -> None:
        x, y = batch.x.float(), batch.y.clone()
        before = copy.deepcopy((x, y))
        miner = part.build()
        with blaming("it"):
            miner(x, y)
        if not (torch.equal(x, before[0]) and torch.equal(y, before[1])):
            raise CheckFailedError("it changed the embeddings or the labels in place", "inputs")

    _on_batches(untouched)


def _as_sets(given: tuple[Tensor, ...], labels: Tensor) -> list[set[tuple[int, ...]]]:
    """Return triplets as a set, or pairs as two sets, so that their order does not matter."""
    require(contracts.mined(given, len(labels)))
    groups = [given] if len(given) == 3 else [given[:2], given[2:]]
    return [set(zip(*(part.tolist() for part in group), strict=True)) for group in groups]
