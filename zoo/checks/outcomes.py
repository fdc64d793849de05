"""Running checks on a component: which apply, their outcomes, and a pytest id for each."""

from __future__ import annotations

import functools
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from zoo.checks.part import Part
from zoo.checks.subject import CheckFailedError, NotApplicableError, Subject
from zoo.errors import FAILURES, UserError, blame, did_you_mean

Subjects: TypeAlias = "Subject | Part"
Check: TypeAlias = "Callable[[Any], None]"  # of a loss or of another component
Outcome: TypeAlias = Literal[
    "passed", "failed", "expected failure", "unexpected pass", "not applicable"
]
_EVERYWHERE = 5  # if so many checks show a fault, it does not depend on their batches
_NUMBER = re.compile(r"\d+")  # sizes in a message depend on the batch
_BAD: tuple[Outcome, ...] = ("failed", "unexpected pass")


@dataclass(frozen=True)
class Record:
    """The outcome of one check.

    Attributes:
        check: its name.
        outcome: "passed", "failed", "expected failure", "unexpected pass" or "not applicable".
        note: what was seen, or the reason.
        seconds: how long it took.
        fault: if it failed, what went wrong, without time and batch.
    """

    check: str
    outcome: Outcome
    note: str
    seconds: float
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether the outcome is as it should be."""
        return self.outcome not in _BAD


@dataclass(frozen=True, repr=False)
class Report:
    """The outcomes of all checks of one loss.

    Attributes:
        name: the loss.
        records: one for each check, in order.
    """

    name: str
    records: tuple[Record, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed, did not apply, or failed as the loss declares."""
        return all(record.ok for record in self.records)

    @property
    def failures(self) -> dict[str, str]:
        """The checks with a wrong outcome, and what was seen."""
        return {record.check: record.note for record in self.records if not record.ok}

    @property
    def faults(self) -> list[tuple[tuple[str, ...], str]]:
        """The faults: the checks that found each, and what the first of them saw.

        A fault that many checks find, as when the loss raises an error, is listed once. A fault
        that few checks find is listed for each of them: their batches may show why.
        """
        alike: dict[str, list[Record]] = {}
        for record in self.records:
            if not record.ok:
                alike.setdefault(_NUMBER.sub("0", record.fault or record.note), []).append(record)
        everywhere = [found for found in alike.values() if len(found) >= _EVERYWHERE]
        single = [[r] for found in alike.values() if found not in everywhere for r in found]
        order = {record.check: i for i, record in enumerate(self.records)}
        return [
            (tuple(record.check for record in found), found[0].note)
            for found in sorted(everywhere + single, key=lambda found: order[found[0].check])
        ]

    @property
    def seconds(self) -> float:
        """How long all checks took."""
        return sum(record.seconds for record in self.records)

    @property
    def summary(self) -> str:
        """How many checks passed, failed and so on, in one line."""
        counts: dict[str, int] = {}
        for record in self.records:
            counts[record.outcome] = counts.get(record.outcome, 0) + 1
        parts = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        return f"{self.name}: {parts}; {self.seconds:.1f} s"

    def __str__(self) -> str:
        """Return the summary, and for each fault the checks, the reason and the smallest batch."""
        return "\n\n".join([self.summary, *(_message(*fault) for fault in self.faults)])

    __repr__ = __str__


def _message(checks: tuple[str, ...], note: str) -> str:
    first, *others = checks
    also = f"\nthe same in {', '.join(others)}" if others else ""
    return f"{first}: {note}{also}"


def unless(why_not: Callable[[Any], str | None]) -> Callable[[Check], Check]:
    """Return a decorator: a check does not apply to losses for which ``why_not`` gives a reason."""

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        def guarded(subject: Subjects) -> None:
            reason = why_not(subject)
            if reason:
                raise NotApplicableError(reason)
            check(subject)

        vars(guarded)["why_not"] = why_not
        return guarded

    return decorate


def applies(check: Check, subject: Subjects) -> bool:
    """Return whether a check applies to a loss, as far as that is known without running it."""
    why_not = vars(check).get("why_not")
    return why_not is None or why_not(subject) is None


def records(checks: Iterable[Check], subject: Subjects, all_names: list[str]) -> Iterator[Record]:
    """Yield the record of each check as soon as it is done."""
    expected = expected_failures(subject, all_names)
    for check in checks:
        start = time.perf_counter()
        outcome, note, fault = _outcome(check, subject, expected.get(check.__name__))
        yield Record(check.__name__, outcome, note, time.perf_counter() - start, fault)


def _outcome(check: Check, subject: Subjects, expected: str | None) -> tuple[Outcome, str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(subject)
    except NotApplicableError as reason:
        return "not applicable", str(reason), ""
    except CheckFailedError as error:
        if expected is not None:
            return "expected failure", expected, ""
        return "failed", str(error), error.fault
    except UserError:
        raise
    except FAILURES as error:  # of a plugin: let the other checks run
        return "failed", str(blame(check.__name__, error)), str(blame("it", error))
    if expected is not None:
        note = f"expected to fail: {expected}; remove it from expected_failures if it is fixed"
        return "unexpected pass", note, ""
    return "passed", "", ""


def expected_failures(subject: Subjects, all_names: list[str]) -> Mapping[str, str]:
    """Return the checks that a loss declares it cannot pass, with reasons.

    Raises:
        UserError: if there is no check of that name.
    """
    expected = subject.traits.expected_failures
    for name in expected:
        if name not in all_names:
            hint = did_you_mean(name, all_names)
            raise UserError(f"expected_failures of {subject.name}: no check named {name!r}{hint}")
    return expected


def parametrize(
    checks: tuple[Check, ...], subjects: Iterable[Subjects], called: str = "loss"
) -> Any:
    """Return pytest's decorator with a parameter (loss, check) for each check that applies."""
    import pytest

    parameters = []
    for subject in subjects:
        expected = expected_failures(subject, [check.__name__ for check in checks])
        for check in checks:
            reason = expected.get(check.__name__)
            marks = () if reason is None else (_strict(pytest.mark, reason),)
            if applies(check, subject):
                name = f"{subject.name}-{check.__name__}"
                parameters.append(pytest.param(subject, check, id=name, marks=marks))
    return pytest.mark.parametrize((called, "check"), parameters)


def _strict(mark: Any, reason: str) -> Any:
    return mark.xfail(reason=reason, strict=True, raises=CheckFailedError)
