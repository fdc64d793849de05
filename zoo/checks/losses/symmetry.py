"""Checks of what must not change the value: order, class numbers, rotation, length."""

from __future__ import annotations

import torch

from zoo.checks import batches
from zoo.checks.batches import CLASSES, DIMENSIONS, TrialBatch
from zoo.checks.compare import hold, prefixed, require_same
from zoo.checks.outcomes import unless
from zoo.checks.subject import Subject


def _has_own_classes(subject: Subject) -> str | None:
    """Not applicable to a loss with weights for each class, whose labels are their indices."""
    return "it has weights for each class" if subject.traits.own_classes else None


def _does_not_normalise(subject: Subject) -> str | None:
    """Applicable only to a loss that declares that it normalises, ``normalises = True``."""
    reasons = {None: "it does not declare that it normalises", False: "it does not normalise"}
    return reasons.get(subject.traits.normalises)


def check_permutation(subject: Subject) -> None:
    """The order of the images in the batch does not matter.

    It matters if a class index is used as a batch column, or classes are assumed to be in blocks.
    """

    def order_does_not_matter(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        n = len(batch.y)
        orders = {"in reverse order": torch.arange(n).flip(0)}
        orders["in another order"] = torch.randperm(n, generator=batches.generator(4))
        for what, order in orders.items():
            with prefixed(what):
                expected = wanted._replace(gradient=wanted.gradient[order])
                require_same(subject.evaluate(batch.rows(order)), expected)

    for batch in batches.general():
        hold(order_does_not_matter, batch)


@unless(_has_own_classes)
def check_relabelling(subject: Subject) -> None:
    """The number of a class does not matter, only which images share it.

    It matters if labels are used as indices, or if their order decides.
    """

    def numbers_do_not_matter(batch: TrialBatch) -> None:
        other = batch._replace(y=(5 * batch.y + 3) % CLASSES)
        with prefixed(f"with labels {other.y.tolist()}"):
            require_same(subject.evaluate(other), subject.evaluate(batch))

    for batch in batches.general():
        hold(numbers_do_not_matter, batch)


@unless(_has_own_classes)
def check_label_values(subject: Subject) -> None:
    """Labels below 0 and above 2^24 work like any others.

    In float32, 16777216 and 16777217 are the same class; as an index, -1 is the last.
    """

    def any_number_works(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        for what, y in {"below 0": -1 - batch.y, "above 2^24": 2**24 + batch.y}.items():
            with prefixed(f"with labels {what}"):
                require_same(subject.evaluate(batch._replace(y=y)), wanted)

    for batch in batches.general():
        hold(any_number_works, batch)


@unless(_has_own_classes)
def check_rotation(subject: Subject) -> None:
    """A rotation of the embedding space does not matter, as it does not matter for retrieval."""
    noise = torch.randn(DIMENSIONS, DIMENSIONS, generator=batches.generator(5), dtype=torch.float64)
    rotation = torch.linalg.qr(noise).Q

    def axes_do_not_matter(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        expected = wanted._replace(gradient=wanted.gradient @ rotation)
        with prefixed("after a rotation"):
            require_same(subject.evaluate(batch._replace(x=batch.x @ rotation)), expected)

    for batch in batches.general():
        hold(axes_do_not_matter, batch)


@unless(_does_not_normalise)
def check_scale_invariance(subject: Subject) -> None:
    """The lengths of the embeddings do not matter to a loss that normalises."""

    def length_does_not_matter(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        each = 0.1 + 3 * torch.rand(len(batch.y), 1, generator=batches.generator(6)).double()
        for what, factor in {
            "a tenth as long": torch.tensor(0.1),
            "of other lengths": each,
        }.items():
            with prefixed(f"with embeddings {what}"):
                expected = wanted._replace(gradient=wanted.gradient / factor)
                require_same(subject.evaluate(batch._replace(x=batch.x * factor)), expected)

    for batch in batches.general():
        hold(length_does_not_matter, batch)
