"""Progress of a process that another one shows, over a connection."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from zoo.progress import Reporter, TrainingReport

_T = TypeVar("_T")

_EVERY = 0.1  # seconds between two messages that only count
END = "end"


def send(connection: Connection, *message: Any) -> None:
    """Send a message; tensors by value, as the connection's own pickler would share memory."""
    connection.send_bytes(pickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Return the next message."""
    return pickle.loads(connection.recv_bytes())


class RemoteReporter(Reporter):
    """Sends all progress to the process that started this one."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(quiet=True)
        self.connection = connection

    def say(self, text: str) -> None:
        """Print a line there."""
        self.send("say", text)

    def track(self, items: Iterable[_T], total: int, title: str) -> Iterator[_T]:
        """Yield the items; count them there."""
        self.send("track", total, title)
        counter = _Counter(self)
        for item in items:
            yield item
            counter.add()
        counter.send()
        self.send(END)

    @contextmanager
    def training(self, start: int, total: int, measure: str = "R@1") -> Iterator[TrainingReport]:
        """Report a training there."""
        self.send("training", start, total, measure)
        counter = _Counter(self)
        with super()._bar(transient=False) as bar:
            yield _RemoteTraining(counter, bar, start, total, measure)
        counter.send()
        self.send(END)

    def send(self, *message: Any) -> None:
        """Send a message for :func:`replay`; if nobody is left to read it, the run is stopping."""
        with suppress(OSError):
            send(self.connection, *message)


class _RemoteTraining(TrainingReport):
    def __init__(self, counter: _Counter, *rest: Any) -> None:
        super().__init__(counter.reporter, *rest)
        self.counter = counter

    def advance(self) -> None:
        """Count one iteration."""
        self.iteration += 1
        self.counter.add()

    def show(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Report a new loss or Recall@1."""
        self.counter.send()
        self.counter.reporter.send("show", iteration, loss, recall)


class _Counter:
    """Sends how many items were finished, a few times a second."""

    def __init__(self, reporter: RemoteReporter) -> None:
        self.reporter = reporter
        self.count, self.last = 0, time.monotonic()

    def add(self) -> None:
        """Count one."""
        self.count += 1
        if time.monotonic() - self.last > _EVERY:
            self.send()

    def send(self) -> None:
        """Send the count so far."""
        self.reporter.send("count", self.count)
        self.count, self.last = 0, time.monotonic()


class RemoteError(Exception):
    """The cause of an error of another process: its traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def replay(connection: Connection, reporter: Reporter) -> Any:
    """Report here what a :class:`RemoteReporter` sends; return what its process returns.

    Raises:
        EOFError: the process is gone.
        BaseException: what it sent as its failure.
    """
    for _, (value,) in _messages(connection, reporter):  # only "done" is left
        return value
    raise EOFError


def _messages(connection: Connection, reporter: Reporter) -> Iterator[tuple[str, list[Any]]]:
    """Yield the messages of a part, up to its end, that are not for the reporter itself."""
    while True:
        kind, *rest = receive(connection)
        if kind == END:
            return
        if kind == "failed":
            error, lines = rest
            raise error from RemoteError(lines)
        if kind == "say":
            reporter.say(*rest)
        elif kind == "track":
            for _ in reporter.track(_counted(connection, reporter), *rest):
                pass
        elif kind == "training":
            with reporter.training(*rest) as report:
                _show(connection, reporter, report)
        else:
            yield kind, rest


def _counted(connection: Connection, reporter: Reporter) -> Iterator[int]:
    """Yield once for each item that the other process has finished."""
    for _, (count,) in _messages(connection, reporter):
        yield from range(count)


def _show(connection: Connection, reporter: Reporter, report: TrainingReport) -> None:
    """Report the progress of a training."""
    for kind, rest in _messages(connection, reporter):
        if kind == "show":
            report.show(*rest)
        else:
            for _ in range(*rest):
                report.advance()
