"""The trackers of a run: a failing one is left out with a warning, and the run goes on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from zoo.base import Tracker
from zoo.config.build import build, refuse
from zoo.config.schema import Config
from zoo.errors import FAILURES, words_of
from zoo.registry import contracts


class Tracking:
    """Trackers by name; with none of them, everything is done for nothing.

    Args:
        trackers: each with its name in messages.
    """

    def __init__(self, trackers: Sequence[tuple[str, Tracker]] = ()) -> None:
        self._trackers = list(trackers)
        self._begun = False

    @classmethod
    def of(cls, config: Config) -> Tracking:
        """Build the trackers of a config; raise a UserError if one cannot be used."""
        given = {
            "run_folder": Path(config.output) / config.run_name(),
            "run_name": config.run_name(),
            "settings": config.resolved(),
        }
        built = [(spec, build("trackers", spec, given)) for spec in config.trackers]
        for spec, tracker in built:
            refuse(spec, contracts.tracker(tracker))
        return cls([(spec.name, tracker) for spec, tracker in built])

    def begin(self, iteration: int) -> None:
        """Begin to track, or go on from an iteration."""
        self._begun = True
        self._each("begin", lambda tracker: tracker.begin(iteration))

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of a line of ``metrics.jsonl``."""
        if not self._begun:  # a run that is only measured
            self.begin(0)
        values = dict(_numbers(record))
        self._each("log", lambda tracker: tracker.log(record["iteration"], dict(values)))

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """End the trackers with the block, as those of a finished run unless it raises."""
        finished = False
        try:
            yield
            finished = True
        finally:
            if self._begun:
                self._each("end", lambda tracker: tracker.end(finished))

    def _each(self, what: str, call: Callable[[Tracker], object]) -> None:
        for named in tuple(self._trackers):
            name, tracker = named
            try:
                with redirect_stdout(sys.stderr):  # stdout is for the result
                    call(tracker)
            except FAILURES as error:
                self._trackers.remove(named)
                reason = " ".join(words_of(error).split())[:300]
                warnings.warn(
                    f"the tracker {name} failed in {what}() ({type(error).__name__}: {reason}); "
                    "the run goes on without it",
                    stacklevel=2,
                )


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a line of ``metrics.jsonl``."""
    for key, value in record.items():
        if isinstance(value, Mapping):  # Recall by K
            name = {"recall_of_validation": "validation_recall"}.get(key, key)
            yield from ((f"{name}_at_{k}", float(number)) for k, number in value.items())
        elif isinstance(value, list):
            yield from ((f"{key}_{i}", float(number)) for i, number in enumerate(value, 1))
        elif key != "iteration":
            yield key, float(value)
