"""Checks of what makes no difference: order, names of classes, rotation, length."""

from __future__ import annotations

import torch

from zoo.checks import batches
from zoo.checks.batches import CLASSES, DIMENSIONS, TrialBatch
from zoo.checks.compare import hold, require_same, saying
from zoo.checks.outcomes import unless
from zoo.checks.subject import Subject


def _has_own_classes(subject: Subject) -> str | None:
    """Not for a loss that has weights for each class: its labels are their indices."""
    return "it has weights for each class" if subject.traits.own_classes else None


def _not_said_to_normalise(subject: Subject) -> str | None:
    """Only for a loss that says that it normalises, ``normalises = True``."""
    said = {None: "it does not say that it normalises", False: "it does not normalise"}
    return said.get(subject.traits.normalises)


def check_permutation(subject: Subject) -> None:
    """The order of the images in the batch makes no difference.

    It does where a class index is used as a batch column, or classes are taken to lie in blocks.
    """

    def order_is_nothing(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        n = len(batch.y)
        orders = {"in reverse order": torch.arange(n).flip(0)}
        orders["in another order"] = torch.randperm(n, generator=batches.generator(4))
        for what, order in orders.items():
            with saying(what):
                expected = wanted._replace(gradient=wanted.gradient[order])
                require_same(subject.evaluate(batch.rows(order)), expected)

    for batch in batches.general():
        hold(order_is_nothing, batch)


@unless(_has_own_classes)
def check_relabelling(subject: Subject) -> None:
    """Which number a class has makes no difference, only which images share one.

    It does where labels are used as indices, or where their order decides.
    """

    def numbers_are_nothing(batch: TrialBatch) -> None:
        other = TrialBatch(batch.x, (5 * batch.y + 3) % CLASSES)
        with saying(f"with labels {other.y.tolist()}"):
            require_same(subject.evaluate(other), subject.evaluate(batch))

    for batch in batches.general():
        hold(numbers_are_nothing, batch)


@unless(_has_own_classes)
def check_label_values(subject: Subject) -> None:
    """Labels below 0 and above 2^24 work as any others.

    In float32 16777216 and 16777217 are one class; as an index, -1 is the last.
    """

    def any_number_does(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        for what, y in {"below 0": -1 - batch.y, "above 2^24": 2**24 + batch.y}.items():
            with saying(f"with labels {what}"):
                require_same(subject.evaluate(TrialBatch(batch.x, y)), wanted)

    for batch in batches.general():
        hold(any_number_does, batch)


@unless(_has_own_classes)
def check_rotation(subject: Subject) -> None:
    """A rotation of the embedding space makes no difference, as it makes none to retrieval."""
    noise = torch.randn(DIMENSIONS, DIMENSIONS, generator=batches.generator(5), dtype=torch.float64)
    rotation = torch.linalg.qr(noise).Q

    def axes_are_nothing(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        expected = wanted._replace(gradient=wanted.gradient @ rotation)
        with saying("after a rotation"):
            require_same(subject.evaluate(TrialBatch(batch.x @ rotation, batch.y)), expected)

    for batch in batches.general():
        hold(axes_are_nothing, batch)


@unless(_not_said_to_normalise)
def check_scale_invariance(subject: Subject) -> None:
    """The lengths of the embeddings make no difference to a loss that normalises."""

    def length_is_nothing(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        each = 0.1 + 3 * torch.rand(len(batch.y), 1, generator=batches.generator(6)).double()
        for what, factor in {
            "a tenth as long": torch.tensor(0.1),
            "of other lengths": each,
        }.items():
            with saying(f"with embeddings {what}"):
                expected = wanted._replace(gradient=wanted.gradient / factor)
                require_same(subject.evaluate(TrialBatch(batch.x * factor, batch.y)), expected)

    for batch in batches.general():
        hold(length_is_nothing, batch)
