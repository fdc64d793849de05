"""Checks of trackers: they take what a run gives, end, and go on where a run went on."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, blaming
from zoo.registry import contracts

_SETTINGS = {
    "dataset": {"name": "glyphs"},
    "loss": {"name": "ice", "scale": 64.0},
    "model": {"backbone": {"name": "convnet"}, "slices": None},
    "evaluate": {"ks": [1, 2], "features": False},
    "seed": 0,
}
_VALUES = {"loss": 0.5, "gradient_norm": 1.25, "lr": 0.001}


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield the place of a run's folder, which does not exist yet; it is removed afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as above:
        yield Path(above) / "check-00000000-s0"


def _begun(part: Part, folder: Path, iteration: int = 0) -> Any:
    given: dict[str, Any] = {
        "run_folder": folder,
        "run_name": folder.name,
        "settings": copy.deepcopy(_SETTINGS),
    }
    tracker = part.build(**given)
    require(contracts.tracker(tracker))
    with blaming(f"its begin({iteration})"):
        tracker.begin(iteration)
    return tracker


def _log(tracker: Any, iteration: int, values: dict[str, float]) -> None:
    with blaming(f"its log({iteration}, {values})"):
        tracker.log(iteration, values)


def _end(tracker: Any, finished: bool) -> None:
    with blaming(f"its end({finished})"):
        tracker.end(finished)


def check_finished(part: Part) -> None:
    """It tracks a run from the beginning to the end, whose folder does not exist before."""
    with _folder() as folder:
        tracker = _begun(part, folder)
        for iteration in (1, 2, 50):
            _log(tracker, iteration, dict(_VALUES))
        _log(tracker, 50, {"recall_at_1": 0.75, "recall_at_10": 1.0})
        _end(tracker, finished=True)


def check_resumed(part: Part) -> None:
    """It goes on with a run that was stopped, from an earlier iteration than it has seen."""
    with _folder() as folder:
        first = _begun(part, folder)
        for iteration in (1, 2, 50, 60):
            _log(first, iteration, dict(_VALUES))
        _end(first, finished=False)
        second = _begun(part, folder, 50)
        _log(second, 60, dict(_VALUES))
        _end(second, finished=True)


def check_killed(part: Part) -> None:
    """It goes on with a run whose process was killed, so that ``end`` was never called."""
    with _folder() as folder:
        _log(_begun(part, folder), 1, dict(_VALUES))
        second = _begun(part, folder, 1)
        _log(second, 2, dict(_VALUES))
        _end(second, finished=True)


def check_added_later(part: Part) -> None:
    """It can be added to a run that was begun without it."""
    with _folder() as folder:
        tracker = _begun(part, folder, 100)
        _log(tracker, 150, dict(_VALUES))
        _end(tracker, finished=True)


def check_without_numbers(part: Part) -> None:
    """It ends a run that was stopped before its first number."""
    with _folder() as folder:
        _end(_begun(part, folder), finished=False)


def check_any_number(part: Part) -> None:
    """It takes numbers that are infinite, NaN or 0, and a name that was not there before."""
    with _folder() as folder:
        tracker = _begun(part, folder)
        _log(tracker, 1, {"loss": math.inf, "gradient_norm": math.nan})
        _log(tracker, 2, {"loss": -math.inf, "loss_of_levels_1": 0.0})
        _end(tracker, finished=True)


def check_leaves_inputs(part: Part) -> None:
    """It does not change what it is given: other trackers get the same."""
    with _folder() as folder:
        tracker = _begun(part, folder)
        values = dict(_VALUES)
        _log(tracker, 1, values)
        _end(tracker, finished=True)
        if values != _VALUES:
            raise CheckFailedError("it changed the numbers that it was given", "inputs")
