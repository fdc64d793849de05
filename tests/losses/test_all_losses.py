"""Every loss of the zoo through every check that applies to it; expected failures are strict."""

from __future__ import annotations

import json

import pytest

import zoo
from zoo.checks import CHECKS, Subject, parametrize_with_checks
from zoo.cli import record

NAMES, EVERY = parametrize_with_checks(zoo.names("losses")).args
LONG = ("check_learning", "check_gradcheck", "check_float32")  # most of the time that checks take
AT_ONCE = ("ice", "proxy_nca", "drpr")  # that are put through these in the fast tests too


def with_speed(one):
    """Return a loss and a check of it, marked as slow where the check is."""
    loss, check = one.values
    slow = check.__name__ in LONG and loss.name not in AT_ONCE
    marks = [*one.marks, pytest.mark.slow] if slow else one.marks
    return pytest.param(*one.values, id=one.id, marks=marks)


@pytest.mark.parametrize(NAMES, map(with_speed, EVERY))
def test_loss(loss, check):
    check(loss)


def test_the_record_is_of_all_losses_and_tells_the_failures_that_they_expect():
    """What `zoo list` shows; made by tools/make_checks.py."""
    recorded = record.read()
    assert list(recorded) == zoo.names("losses")
    for name, counts in recorded.items():
        assert sum(counts.values()) == len(CHECKS), f"{name}: tools/make_checks.py {name}"
        assert not {"failed", "unexpected pass"} & set(counts), name
        expected = len(Subject(name).traits.expected_failures)
        assert counts.get("expected failure", 0) == expected, name


def test_a_record_that_is_damaged_or_absent_is_no_record(tmp_path, monkeypatch):
    path = tmp_path / "checks.json"
    monkeypatch.setattr(record, "path", lambda: path)
    assert record.read() == {}
    for text in ("", "[]x", json.dumps({"other": 1})):
        path.write_text(text)
        assert record.read() == {}


def test_counts_in_short():
    assert record.in_short(None) == ""
    assert record.in_short({"passed": 30}) == "30 pass"
    assert record.in_short({"passed": 27, "expected failure": 1}) == "27 pass, 1 cannot"
    assert record.in_short({"passed": 27, "failed": 1, "unexpected pass": 1}) == "2 fail"
