"""Checks that any loss can be put through: of the zoo, of pytorch-metric-learning, or your own.

A check is a function that raises :class:`CheckFailedError` if a loss lacks a property; the message
holds the numbers that were seen and the smallest batch that shows them::

    zoo.checks.run("ice")                      # all of them, as a report
    zoo.checks.run("pml.NTXentLoss", {"temperature": 0.015625})
    zoo.checks.check_permutation(zoo.checks.Subject(MyLoss))

    @zoo.checks.parametrize_with_checks(["ice", MyLoss])
    def test_loss(loss, check):                # ids such as ice-check_permutation
        check(loss)

Which of them apply is read off attributes of the loss, all of them optional: ``kind``, ``gallery``,
``mined`` and ``normalises`` as the losses of the zoo have them; ``random`` for one that draws
numbers; ``expected_failures`` for what it cannot pass by its definition, ``{check: reason}`` (it is
a fault if it passes then); and a method ``reference_gradient(embeddings, labels)`` for one whose
gradient is by definition not the derivative of its value, which returns what it is. A class whose
constructor cannot do without arguments has some to be checked with in ``check_arguments``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from zoo import _check_numbers, _check_symmetry, _check_use
from zoo._check_numbers import (
    check_antipodal,
    check_autocast,
    check_collapsed,
    check_duplicates,
    check_float32,
    check_gradcheck,
    check_half_precision,
    check_huge_norms,
    check_large_gaps,
    check_nan_embeddings,
    check_no_negatives,
    check_no_positives,
    check_one_image,
    check_perfect,
    check_unequal_classes,
    check_zero_rows,
)
from zoo._check_run import Check, Outcome, Record, Report, applies, parametrize
from zoo._check_run import records as _records
from zoo._check_subject import CheckFailedError, NotApplicableError, Subject
from zoo._check_symmetry import (
    check_label_values,
    check_permutation,
    check_relabelling,
    check_rotation,
    check_scale_invariance,
)
from zoo._check_use import (
    check_determinism,
    check_gallery,
    check_learning,
    check_leaves_inputs,
    check_memory,
    check_mined,
    check_moves,
    check_repeated_steps,
    check_state_dict,
)
from zoo._checked import checked
from zoo._source import plain
from zoo.errors import UserError, did_you_mean

__all__ = [
    "CHECKS",
    "Check",
    "CheckFailedError",
    "NotApplicableError",
    "Outcome",
    "Record",
    "Report",
    "Subject",
    "check_antipodal",
    "check_autocast",
    "check_collapsed",
    "check_determinism",
    "check_duplicates",
    "check_float32",
    "check_gallery",
    "check_gradcheck",
    "check_half_precision",
    "check_huge_norms",
    "check_label_values",
    "check_large_gaps",
    "check_learning",
    "check_leaves_inputs",
    "check_memory",
    "check_mined",
    "check_moves",
    "check_nan_embeddings",
    "check_no_negatives",
    "check_no_positives",
    "check_one_image",
    "check_perfect",
    "check_permutation",
    "check_relabelling",
    "check_repeated_steps",
    "check_rotation",
    "check_scale_invariance",
    "check_state_dict",
    "check_unequal_classes",
    "check_zero_rows",
    "checks_for",
    "parametrize_with_checks",
    "records",
    "run",
    "summaries",
]

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (_check_numbers, _check_symmetry, _check_use)
    for name, value in vars(module).items()
    if name.startswith("check_")
)
"""All checks."""


def summaries() -> dict[str, str]:
    """Return the names of all checks, in the order they are run in, and what each requires."""
    found = {check.__name__: inspect.getdoc(check) or "" for check in CHECKS}
    return {name: plain(text.split("\n", 1)[0]) for name, text in found.items()}


@checked
def run(
    loss: str | Callable[..., nn.Module] | Subject,
    arguments: Mapping[str, Any] | None = None,
    only: Iterable[str] = (),
) -> Report:
    """Put a loss through all checks, or through those named, and return what came of each.

    Args:
        loss: as :class:`Subject` takes it.
        arguments: for its constructor.
        only: names of checks.

    Raises:
        UserError: if there is no such loss or check, or the arguments do not fit.
    """
    subject = _subject(loss, arguments)
    return Report(subject.name, tuple(records(subject, only)))


@checked
def records(subject: Subject, only: Iterable[str] = ()) -> Iterator[Record]:
    """Yield the record of each check as soon as it is done."""
    return _records(_chosen(only), subject, [check.__name__ for check in CHECKS])


@checked
def checks_for(loss: str | Callable[..., nn.Module] | Subject) -> tuple[Check, ...]:
    """Return the checks that have a meaning for a loss, as far as it says."""
    subject = _subject(loss)
    return tuple(check for check in CHECKS if applies(check, subject))


@checked
def parametrize_with_checks(losses: Iterable[str | Callable[..., nn.Module] | Subject]) -> Any:
    """Return a pytest decorator for a test with arguments ``loss`` and ``check``.

    There is one test for each loss and each check that applies to it. Expected failures are
    pytest's own, and strict: one that passes is a failure.
    """
    return parametrize(CHECKS, map(_subject, losses))


def _subject(loss: Any, arguments: Mapping[str, Any] | None = None) -> Subject:
    return loss if isinstance(loss, Subject) else Subject(loss, arguments)


def _chosen(only: Iterable[str]) -> tuple[Check, ...]:
    known = {check.__name__: check for check in CHECKS}
    wanted = list(only)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or "; `zoo check --list` shows what there is"
            raise UserError(f"there is no check named {name!r}{hint}")
    return tuple(check for name, check in known.items() if not wanted or name in wanted)
