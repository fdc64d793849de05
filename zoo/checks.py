"""Checks that any component can be put through: of the zoo, of PML, or your own.

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

Miners, samplers, backbones and data sets have checks of their own, by the same functions::

    zoo.checks.run("m_per_class", {"classes": 4, "per_class": 2}, kind="samplers")
    zoo.checks.run(MyDataset, kind="datasets")

They may have ``random``, ``expected_failures`` and ``check_arguments`` too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from zoo import (
    _check_backbones,
    _check_datasets,
    _check_miners,
    _check_numbers,
    _check_samplers,
    _check_symmetry,
    _check_use,
)
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
from zoo._check_part import Part
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
from zoo.registry import Kind

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "Check",
    "CheckFailedError",
    "NotApplicableError",
    "Outcome",
    "Part",
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


def _checks_in(*modules: Any) -> tuple[Check, ...]:
    return tuple(
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_")
    )


CHECKS: tuple[Check, ...] = _checks_in(_check_numbers, _check_symmetry, _check_use)
"""All checks of losses."""

CHECKS_OF: Mapping[Kind, tuple[Check, ...]] = {
    "losses": CHECKS,
    "miners": _checks_in(_check_miners),
    "samplers": _checks_in(_check_samplers),
    "backbones": _checks_in(_check_backbones),
    "datasets": _checks_in(_check_datasets),
}
"""All checks of each kind of component."""

Checkable = str | Callable[..., Any] | Subject | Part


@checked
def summaries(kind: Kind = "losses") -> dict[str, str]:
    """Return the checks of a kind, by name in the order they are run in, and what each asks."""
    found = {check.__name__: inspect.getdoc(check) or "" for check in CHECKS_OF[kind]}
    return {name: plain(text.split("\n", 1)[0]) for name, text in found.items()}


@checked
def run(
    loss: Checkable,
    arguments: Mapping[str, Any] | None = None,
    only: Iterable[str] = (),
    kind: Kind = "losses",
) -> Report:
    """Put a component through all checks, or through those named; return what came of each.

    Args:
        loss: a loss, as :class:`Subject` takes it; or another component, as :class:`Part` does.
        arguments: for its constructor.
        only: names of checks.
        kind: what it is; one of "losses", "miners", "samplers", "backbones" and "datasets".

    Raises:
        UserError: if there is no such component or check, or the arguments do not fit.
    """
    subject = subject_of(loss, arguments, kind)
    return Report(subject.name, tuple(records(subject, only)))


@checked
def records(subject: Subject | Part, only: Iterable[str] = ()) -> Iterator[Record]:
    """Yield the record of each check as soon as it is done."""
    names = [check.__name__ for check in CHECKS_OF[subject.kind]]
    return _records(_chosen(only, subject.kind), subject, names)


@checked
def checks_for(loss: Checkable, kind: Kind = "losses") -> tuple[Check, ...]:
    """Return the checks that have a meaning for a component, as far as it says."""
    subject = subject_of(loss, None, kind)
    return tuple(check for check in CHECKS_OF[subject.kind] if applies(check, subject))


@checked
def parametrize_with_checks(losses: Iterable[Checkable], kind: Kind = "losses") -> Any:
    """Return a pytest decorator for a test with arguments ``loss`` and ``check``.

    There is one test for each loss and each check that applies to it. Expected failures are
    pytest's own, and strict: one that passes is a failure. For another kind of component the first
    argument of the test is called ``component``.
    """
    subjects = [subject_of(loss, None, kind) for loss in losses]
    return parametrize(CHECKS_OF[kind], subjects, "loss" if kind == "losses" else "component")


def subject_of(
    component: Any, arguments: Mapping[str, Any] | None = None, kind: Kind = "losses"
) -> Subject | Part:
    """Return a component under check."""
    if isinstance(component, Subject | Part):
        return component
    return Subject(component, arguments) if kind == "losses" else Part(component, kind, arguments)


def _chosen(only: Iterable[str], kind: Kind) -> tuple[Check, ...]:
    known = {check.__name__: check for check in CHECKS_OF[kind]}
    wanted = list(only)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or "; `zoo check --list` shows what there is"
            raise UserError(f"there is no check of {kind} named {name!r}{hint}")
    return tuple(check for name, check in known.items() if not wanted or name in wanted)
