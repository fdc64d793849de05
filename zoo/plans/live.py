"""The progress of many runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zoo.plans.jobs import Job, State

_COLOURS: dict[State, str] = {
    "finished": "green",
    "failed": "red",
    "waiting": "dim",
    "pruned": "dim",
}
_FIRST: tuple[State, ...] = (
    "running",
    "failed",
    "stopped",
    "in another process",
    "waiting",
    "pruned",
    "finished",
)
_AROUND = 8  # lines of the terminal outside the rows of the table
_EVERY = 60.0  # seconds between two lines on the progress of a run


class LiveTable:
    """Shows the progress of jobs, in their order, on a console; nothing if quiet."""

    def __init__(self, jobs: Sequence[Job], console: Console, quiet: bool = False) -> None:
        self._jobs, self._console, self._quiet = jobs, console, quiet
        self._live: Live | None = None
        self._printed = time.monotonic()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show the table while the block runs; its last state stays on the terminal."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as live:
            self._live = live
            yield
            live.update(self.table(), refresh=True)
        self._live = None

    def changed(self, job: Job) -> None:
        """Print that a job is being started, trains, or has ended."""
        if self._live is None and not self._quiet:
            doing = "testing" if job.test and job.folder.validated else job.doing
            self._say(job, doing if job.state == "running" else job.state)

    def stopping(self) -> None:
        """Print that a signal has come and the runs are saving, which takes a while."""
        if not self._quiet:
            again = "a second Ctrl-C stops them without saving, a third kills them"
            self._console.print(f"stopping: the runs save; {again}", soft_wrap=True)

    def left_over(self, jobs: Sequence[Job]) -> None:
        """Print that only runs of other processes are left to wait for."""
        if not self._quiet:
            what = jobs[0].name if len(jobs) == 1 else f"{len(jobs)} runs"
            text = f"waiting for another process to finish {what}; Ctrl-C stops waiting"
            self._console.print(text, markup=False, soft_wrap=True)

    def tick(self) -> None:
        """Update what is shown."""
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
        elif not self._quiet and time.monotonic() - self._printed > _EVERY:
            self._printed = time.monotonic()
            for job in self._jobs:
                if job.state == "running":
                    self._say(job, job.doing)

    def table(self) -> Table:
        """Return the table; if there are more jobs than lines, those that matter most."""
        table = Table(box=None, pad_edge=False, title_justify="left", caption_justify="left")
        for head in ("run", "settings", "state"):
            table.add_column(head, no_wrap=True, overflow="ellipsis")
        for head in ("iteration", "loss", _recall_of(self._jobs), "left"):
            table.add_column(head, justify="right", no_wrap=True)
        shown = self._most_important(max(3, self._console.height - _AROUND))
        for job in shown:
            state = Text(job.doing if job.state == "running" else job.state)
            style = _COLOURS.get(job.state, "")
            table.add_row(Text(job.name), Text(job.settings), state, *figures(job), style=style)
        table.caption = _caption(self._jobs, len(self._jobs) - len(shown))
        return table

    def _most_important(self, count: int) -> list[Job]:
        chosen = sorted(self._jobs, key=lambda job: _FIRST.index(job.state))[:count]
        return [job for job in self._jobs if any(job is one for one in chosen)]

    def _say(self, job: Job, state: str) -> None:
        iteration, loss, recall, left = figures(job)
        facts = [f"{state:<10}", job.name, job.settings, iteration]
        facts += [loss and f"loss {loss}", recall and f"{_recall_of([job])} {recall}"]
        facts += [left and f"{left} left", job.reason]
        self._console.print("  ".join(filter(None, facts)), markup=False, soft_wrap=True)


def figures(job: Job) -> tuple[str, str, str, str]:
    """Return iteration, loss, recall in percent and time left; empty where unknown."""
    left = job.seconds_left
    return (
        "" if job.iteration is None else f"{job.iteration}/{job.total}",
        "" if job.loss is None else f"{job.loss:.4f}",
        "" if job.recall is None else f"{100 * job.recall:.2f}",
        "" if left is None else clock(left),
    )


def clock(seconds: float) -> str:
    """Return a time as 1:23:45."""
    return str(timedelta(seconds=round(seconds)))


def counts(states: Sequence[str]) -> str:
    """Return counts such as ``2 finished, 1 new``, in the order of first occurrence."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def _caption(jobs: Sequence[Job], hidden: int) -> str:
    more = f"and {hidden} more; " if hidden else ""
    return f"{more}{len(jobs)} runs: {counts([job.state for job in jobs])}"


def _recall_of(jobs: Sequence[Job]) -> str:
    found = {_measure(job) for job in jobs}
    return found.pop() if len(found) == 1 else "recall"


def _measure(job: Job) -> str:
    """Return the name of a run's current recall: of held-out classes first, of the test last."""
    k = job.config.evaluate.ks[0]
    if not job.test:
        return f"validation R@{k}"
    tested = job.state == "finished" or job.config.evaluate.validation is None
    return f"R@{k}" if tested else "recall"
