"""Progress of long jobs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from zoo.support.text import harmless

_T = TypeVar("_T")

_EVERY = 10.0  # seconds without output after which a line reports progress
_NARROWEST, _WIDEST = 20, 10_000  # characters of a line


class Terminal(Console):
    """A console that printed text cannot control: names of files and classes are not trusted.

    Everything but data (see :func:`echo`) is printed through one. Text is made harmless before
    layout, so that columns stay aligned, and again when written, as some is not plain text.
    """

    def __init__(self, **settings: Any) -> None:
        # No emoji in a loss m:on:. In a notebook, too, lines go to the streams: as HTML, each line
        # would be a separate output.
        super().__init__(highlight=False, emoji=False, force_jupyter=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return the text as it will be shown."""
        return super().render_str(harmless(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is written; rich's own control codes pass unchanged."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


def stderr() -> Terminal:
    """Return a console for messages, as opposed to results."""
    return Terminal(stderr=True)


class Reporter:
    """Writes messages to stderr, so that stdout holds only results."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or stderr()
        self.quiet = quiet
        self.live = self.console.is_terminal and not quiet

    def say(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    def track(self, items: Iterable[_T], total: int, title: str) -> Iterator[_T]:
        """Yield the items under a bar that disappears at the end."""
        reported = time.monotonic()
        with self._bar(transient=True) as bar:
            task = bar.add_task(title, total=total, rest="")
            for done, item in enumerate(items, 1):
                yield item
                bar.advance(task)
                if not self.live and time.monotonic() - reported > _EVERY:
                    reported = time.monotonic()
                    self.say(f"{title}  {done}/{total}")

    @contextmanager
    def training(self, start: int, total: int, measure: str = "R@1") -> Iterator[TrainingReport]:
        """Report a training from iteration ``start`` to ``total``, with this name of its recall."""
        with self._bar(transient=False) as bar:
            yield TrainingReport(self, bar, start, total, measure)

    @contextmanager
    def bar(self, *columns: ProgressColumn, transient: bool = True) -> Iterator[Progress]:
        """Show a bar of these columns while the block runs, on a terminal only.

        Elsewhere it counts unseen and is not started, as rich before 15 ends even a disabled bar
        with a blank line.
        """
        bar = Progress(*columns, console=self.console, transient=transient, disable=not self.live)
        with bar if self.live else nullcontext():
            yield bar

    def _bar(self, transient: bool) -> AbstractContextManager[Progress]:
        return self.bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rest]}"),
            TimeRemainingColumn(compact=True),
            transient=transient,
        )


class TrainingReport:
    """Iterations per second, loss, last Recall@1 and time left."""

    def __init__(
        self, reporter: Reporter, bar: Progress, start: int, total: int, measure: str = "R@1"
    ) -> None:
        self.reporter, self.bar, self.start, self.total = reporter, bar, start, total
        self.began = time.perf_counter()
        self.loss: float | None = None
        self.recall: float | None = None
        self.measure = measure
        self.iteration = start
        self.reported_at, self.reported = self.began, start
        self.task = bar.add_task("training", total=total, completed=start, rest="")

    def advance(self) -> None:
        """Count one iteration; after a silence, first report the progress up to the one before it.

        That line leaves out the loss, since reading it makes a GPU wait; :meth:`show` reports it.
        """
        silent = time.perf_counter() - self.reported_at > _EVERY
        if not self.reporter.live and silent and self.reported < self.iteration:
            self._say(self.iteration)
        self.iteration += 1
        self.bar.advance(self.task)

    def show(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Report a new loss or Recall@1 (a fraction); a bar keeps the last value of the other."""
        self.loss = self.loss if loss is None else loss
        self.recall = self.recall if recall is None else recall
        speed = self._speed(iteration)
        self.bar.update(self.task, rest="  ".join(self._parts(speed, self.loss, self.recall)))
        if not self.reporter.live:
            self._say(iteration, loss, recall)

    def _say(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Print a line."""
        self.reported_at, self.reported = time.perf_counter(), iteration
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


def stdout() -> Terminal:
    """Return a console for results: as wide as ``COLUMNS`` or the terminal, else 160 characters."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").lstrip("0").isdigit()
    return Terminal(width=None if known else 160)


def echo(text: str, end: str = "\n") -> None:
    """Write data to stdout: unchanged into a file or a pipe, made harmless on a terminal."""
    sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + end)
    sys.stdout.flush()


def mend_size() -> None:
    """Unset ``COLUMNS`` if it is too narrow for any table, and cap it if it is absurdly wide.

    rich and click read it, and accept any number as a width, 0 included.
    """
    digits = os.environ.get("COLUMNS", "").lstrip("0")
    if len(digits) > 5 and digits.isdecimal():
        os.environ["COLUMNS"] = str(_WIDEST)
    elif not digits.isdecimal() or int(digits) < _NARROWEST:
        os.environ.pop("COLUMNS", None)
    else:
        os.environ["COLUMNS"] = str(min(int(digits), _WIDEST))
