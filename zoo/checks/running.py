"""All checks of each kind of component, and running them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from zoo.checks import backbones, datasets, miners, samplers, spaces, trackers
from zoo.checks.losses import numbers, rows, symmetry, use
from zoo.checks.outcomes import Check, Record, Report, applies, parametrize
from zoo.checks.outcomes import records as _records
from zoo.checks.part import Part
from zoo.checks.subject import Subject
from zoo.errors import UserError, did_you_mean
from zoo.registry import Kind
from zoo.registry.source import plain
from zoo.support.checked import checked


def _checks_in(*modules: Any) -> tuple[Check, ...]:
    return tuple(
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_")
    )


CHECKS: tuple[Check, ...] = _checks_in(numbers, symmetry, use, rows)
"""All checks of losses."""

CHECKS_OF: Mapping[Kind, tuple[Check, ...]] = {
    "losses": CHECKS,
    "miners": _checks_in(miners),
    "samplers": _checks_in(samplers),
    "backbones": _checks_in(backbones),
    "datasets": _checks_in(datasets),
    "spaces": _checks_in(spaces),
    "trackers": _checks_in(trackers),
}
"""All checks of each kind of component."""

Checkable = str | Callable[..., Any] | Subject | Part


@checked
def summaries(kind: Kind = "losses") -> dict[str, str]:
    """Return the name of each check of a kind and what it requires, in the order of running."""
    found = {check.__name__: inspect.getdoc(check) or "" for check in CHECKS_OF[kind]}
    return {name: plain(text.split("\n", 1)[0]) for name, text in found.items()}


@checked
def run(
    loss: Checkable,
    arguments: Mapping[str, Any] | None = None,
    only: Iterable[str] = (),
    kind: Kind = "losses",
) -> Report:
    """Run all checks of a component, or those named; return their outcomes.

    Args:
        loss: a loss, as :class:`Subject` takes it; or another component, as :class:`Part` does.
        arguments: for its constructor.
        only: names of checks.
        kind: "losses", "miners", "samplers", "backbones", "datasets", "spaces" or "trackers".

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
    """Return the checks that apply to a component, by what it declares."""
    subject = subject_of(loss, None, kind)
    return tuple(check for check in CHECKS_OF[subject.kind] if applies(check, subject))


@checked
def parametrize_with_checks(losses: Iterable[Checkable], kind: Kind = "losses") -> Any:
    """Return a pytest decorator for a test with arguments ``loss`` and ``check``.

    There is one test for each loss and each check that applies to it. Expected failures are marked
    as strict xfail: one that passes is a failure. For another kind of component the first argument
    of the test is called ``component``.
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
