"""What a long job says while it works: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")

_EVERY = 10.0  # seconds without a word after which a line says how far it is


class Reporter:
    """Speaks to the user on stderr, so that stdout holds results only."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self.quiet = quiet
        self.live = self.console.is_terminal and not quiet

    def say(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    def track(self, items: Iterable[_T], total: int, title: str) -> Iterator[_T]:
        """Yield the items under a bar that goes away at the end."""
        told = time.monotonic()
        with self._bar(transient=True) as bar:
            task = bar.add_task(title, total=total, rest="")
            for done, item in enumerate(items, 1):
                yield item
                bar.advance(task)
                if not self.live and time.monotonic() - told > _EVERY:
                    told = time.monotonic()
                    self.say(f"{title}  {done}/{total}")

    @contextmanager
    def training(self, start: int, total: int) -> Iterator[TrainingReport]:
        """Open the report of a training that goes from iteration start to total."""
        with self._bar(transient=False) as bar:
            yield TrainingReport(self, bar, start, total)

    def _bar(self, transient: bool) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rest]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=transient,
            disable=not self.live,
        )


class TrainingReport:
    """Iterations per second, loss, last Recall@1 and time left."""

    def __init__(self, reporter: Reporter, bar: Progress, start: int, total: int) -> None:
        self.reporter, self.bar, self.start, self.total = reporter, bar, start, total
        self.began = time.perf_counter()
        self.loss: float | None = None
        self.recall: float | None = None
        self.measure = "R@1"
        self.iteration = start
        self.told = self.began
        self.task = bar.add_task("training", total=total, completed=start, rest="")

    def advance(self) -> None:
        """Count one iteration; where nothing was told for a while, tell how far it is.

        The loss is not told then: to look at it would make a GPU wait.
        """
        self.iteration += 1
        self.bar.advance(self.task)
        if not self.reporter.live and time.perf_counter() - self.told > _EVERY:
            self._say(self.iteration)

    def show(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Tell of a new loss or Recall@1 (a fraction); a bar keeps the last of the other."""
        self.loss = self.loss if loss is None else loss
        self.recall = self.recall if recall is None else recall
        speed = self._speed(iteration)
        self.bar.update(self.task, rest="  ".join(self._parts(speed, self.loss, self.recall)))
        if not self.reporter.live:
            self._say(iteration, loss, recall)

    def _say(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Print a line."""
        self.told = time.perf_counter()
        speed = self._speed(iteration)
        left = timedelta(seconds=round((self.total - iteration) / max(1e-9, speed)))
        count = f"{iteration:>{len(str(self.total))}}/{self.total}"
        self.reporter.say("  ".join([count, *self._parts(speed, loss, recall), f"{left} left"]))

    def _speed(self, iteration: int) -> float:
        return (iteration - self.start) / max(1e-9, time.perf_counter() - self.began)

    def _parts(self, speed: float, loss: float | None, recall: float | None) -> list[str]:
        parts = [f"{speed:.1f} it/s" if speed >= 1 or not speed else f"{1 / speed:.1f} s/it"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if recall is not None:
            parts.append(f"{self.measure} {100 * recall:.2f}")
        return parts


def stdout() -> Console:
    """Return a console for results; wide enough for a table when it is not a terminal.

    ``COLUMNS``, where it is set, says how wide in both cases; rich reads it.
    """
    told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").lstrip("0").isdigit()
    width = None if told else 160
    return Console(highlight=False, emoji=False, width=width)  # a loss m:on: has no emoji in it
