"""What a long job says while it works: a live bar on a terminal, plain lines elsewhere."""

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

_EVERY = 10.0  # seconds without a word after which a line says how far it is
_NARROWEST, _WIDEST = 20, 10_000  # characters of a line


class Terminal(Console):
    """A console that no text can steer: names of folders, classes and files are strangers'.

    All that the zoo prints goes through one, but for data, see :func:`echo`. A text is made
    harmless before it is laid out, so that columns stay in line, and again when it is written,
    since not all of it comes as plain text.
    """

    def __init__(self, **settings: Any) -> None:
        # No emoji in a loss m:on:. In a notebook lines go to its streams as well: one by one, as
        # HTML, each would be an output of its own.
        super().__init__(highlight=False, emoji=False, force_jupyter=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return the text as it is shown."""
        return super().render_str(harmless(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is written, and what rich itself steers the terminal with."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


def stderr() -> Terminal:
    """Return a console for what is told, as opposed to results."""
    return Terminal(stderr=True)


class Reporter:
    """Speaks to the user on stderr, so that stdout holds results only."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or stderr()
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

    @contextmanager
    def bar(self, *columns: ProgressColumn, transient: bool = True) -> Iterator[Progress]:
        """Show a bar of these columns while the block runs, if a person is looking on.

        Elsewhere it counts without being shown. Then it is not even started, since rich before 15
        ends a bar with a blank line though it is disabled.
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

    def __init__(self, reporter: Reporter, bar: Progress, start: int, total: int) -> None:
        self.reporter, self.bar, self.start, self.total = reporter, bar, start, total
        self.began = time.perf_counter()
        self.loss: float | None = None
        self.recall: float | None = None
        self.measure = "R@1"
        self.iteration = start
        self.told, self.told_of = self.began, start
        self.task = bar.add_task("training", total=total, completed=start, rest="")

    def advance(self) -> None:
        """Count one iteration; where nothing was told for a while, tell how far it was before.

        The loss is not told then: to look at it would make a GPU wait. Of this iteration it may be
        told yet, see :meth:`show`.
        """
        silent = time.perf_counter() - self.told > _EVERY
        if not self.reporter.live and silent and self.told_of < self.iteration:
            self._say(self.iteration)
        self.iteration += 1
        self.bar.advance(self.task)

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
        self.told, self.told_of = time.perf_counter(), iteration
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
    """Return a console for results; wide enough for a table when it is not a terminal.

    ``COLUMNS``, where it is set, says how wide in both cases; rich reads it.
    """
    told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").lstrip("0").isdigit()
    width = None if told else 160
    return Terminal(width=width)


def echo(text: str, end: str = "\n") -> None:
    """Write data to stdout: into a file or a pipe as it is, harmless on a terminal."""
    sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + end)
    sys.stdout.flush()


def mend_size() -> None:
    """Let ``COLUMNS`` be as if unset where no table fits into it, and no wider than makes sense.

    It is read by rich and by click, which take any number for a width, and 0 too.
    """
    digits = os.environ.get("COLUMNS", "").lstrip("0")
    if len(digits) > 5 and digits.isdecimal():
        os.environ["COLUMNS"] = str(_WIDEST)
    elif not digits.isdecimal() or int(digits) < _NARROWEST:
        os.environ.pop("COLUMNS", None)
    else:
        os.environ["COLUMNS"] = str(min(int(digits), _WIDEST))
