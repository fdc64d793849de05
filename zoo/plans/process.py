"""The process of one run among many: reads a config from stdin, reports its progress on stdout.

With ``--no-test`` the run ends with the held-out classes, see :func:`zoo.runner.run`.

The config is YAML that ends with a line ``...``. The parent process keeps stdin open after it; when
the parent is gone and stdin ends, the run saves and stops. One more byte on stdin asks for the
same, on every system. Each event is a line of JSON on stdout.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar

from zoo.config.schema import Config
from zoo.errors import UserError, out_of_memory, words_of
from zoo.progress import Reporter, TrainingReport
from zoo.runs.folder import BusyError
from zoo.support import signals, yaml

_T = TypeVar("_T")

END = "..."
_LAST = f"{END}\n".encode()
STOP = b"."
NO_TEST = "--no-test"
_EVERY = 0.2  # seconds between two reports of progress


def main() -> None:
    """Do the run; end with status 0 if it is finished."""
    send = EventWriter(_private_stdout())
    lines = list(_until_end())
    if lines.pop() != _LAST:  # the parent process is gone
        sys.exit(1)
    config = Config.model_validate(_plain(b"".join(lines).decode()))
    try:
        signals.end_as_ctrl_c_does()
        signals.leave_to_the_parent()
        threading.Thread(target=_watch_parent, daemon=True).start()
        send(finished=_run(config, send, test=NO_TEST not in sys.argv))
    except BusyError:
        send(busy=True)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - a run that fails must not stop the others
        reason = _expected(error)
        if reason is None:
            traceback.print_exc()
        text = reason or f"{type(error).__name__}: {words_of(error)}"
        send(failed=text, log=reason is None, diverged=_has_diverged(error))
        sys.exit(1)
    except KeyboardInterrupt:
        send(stopped="stopped")
        sys.exit(1)


def _until_end() -> Iterator[bytes]:
    """Yield lines of stdin up to the one that ends a config; an empty one if stdin ends first.

    Nothing is read beyond that line: the next byte may be a request to stop.
    """
    line = None
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream:
        while line not in (b"", _LAST):
            line = stream.readline()
            yield line


class EventWriter:
    """Writes events as lines of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = 0.0

    def __call__(self, **event: Any) -> None:
        """Write an event; a closed pipe is no error, since the run is then about to be stopped."""
        self._last = time.monotonic()
        with suppress(OSError):
            self._stream.write(json.dumps(event) + "\n")
            self._stream.flush()

    def throttled(self, **event: Any) -> None:
        """Write an event, unless one was written just before."""
        if time.monotonic() - self._last > _EVERY:
            self(**event)


class Relay(Reporter):
    """Passes progress on to the process that shows it."""

    def __init__(self, send: EventWriter) -> None:
        super().__init__(quiet=True)
        self.send = send

    def track(self, items: Iterable[_T], total: int, title: str) -> Iterator[_T]:
        """Yield the items; report the title as the state."""
        self.send(state=title)
        yield from super().track(items, total, title)

    @contextmanager
    def training(self, start: int, total: int, measure: str = "R@1") -> Iterator[TrainingReport]:
        """Open the report of a training that goes from iteration start to total."""
        self.send(state="training", start=start, total=total)
        with self._bar(transient=False) as bar:
            yield _RelayedReport(self, bar, start, total, measure)


class _RelayedReport(TrainingReport):
    """Reports the progress of a training as events."""

    reporter: Relay

    def advance(self) -> None:
        """Count one iteration."""
        super().advance()
        self.reporter.send.throttled(state="training", iteration=self.iteration)

    def show(self, iteration: int, loss: float | None = None, recall: float | None = None) -> None:
        """Report a new loss or Recall@1 (a fraction)."""
        super().show(iteration, loss, recall)
        self.reporter.send(
            state="training", iteration=iteration, loss=self.loss, recall=self.recall
        )


def _run(config: Config, send: EventWriter, test: bool = True) -> float:
    """Do the run; return its Recall at the first K, of the test or the held-out classes."""
    from zoo import runner
    from zoo.support import environment
    from zoo.training import loop

    environment.keep_freed_memory()
    try:
        result = runner.run(config, reporter=Relay(send), test=test)
    except loop.InterruptedRunError as error:
        send(stopped=str(error))
        sys.exit(1)
    recall = (result if test else result["validation"])["recall"]
    return float(recall[min(recall, key=int)])


def _has_diverged(error: Exception) -> bool:
    from zoo.training.step import DivergedError

    return isinstance(error, DivergedError)


def _expected(error: Exception) -> str | None:
    """Return why a run failed; None if the reason is a bug."""
    from zoo.training.step import DivergedError

    if isinstance(error, UserError | DivergedError):
        return str(error)
    return out_of_memory(error)


def _plain(text: str) -> Any:
    problems: list[yaml.Problem] = []
    node = yaml.parse(text, "stdin", problems)
    assert node is not None, problems
    return node.plain()


def _private_stdout() -> TextIO:
    """Return the real stdout; from now on, what other code prints to stdout goes to stderr."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


def _watch_parent() -> None:
    """Ask for a stop, as SIGTERM does, for every byte on stdin and at its end.

    No signal is sent: on Windows it would end the process at once.
    """
    asked = 0
    while os.read(sys.stdin.fileno(), len(STOP)) or not asked:
        asked += 1
        _thread.interrupt_main(signal.SIGTERM)
