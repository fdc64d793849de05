"""Who looks after a run on another machine: starts its process there, and answers for it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from zoo.plans.engines.base import Task
from zoo.plans.engines.child import Child


class News(NamedTuple):
    """What is new of a run.

    Attributes:
        events: that have come since the last report.
        status: its exit status; None while it runs.
        log: after its end, what it wrote to stderr.
    """

    events: list[dict[str, Any]]
    status: int | None = None
    log: str = ""


class Attendant:
    """Starts the process of a run, and reports on it when asked.

    Args:
        task: the run.
        threads: CPU threads that it may use.
    """

    def __init__(self, task: Task, threads: int) -> None:
        self._events: deque[dict[str, Any]] = deque()
        self._child = Child(task, self._events.append, threads)
        self._end: News | None = None

    def report(self) -> News:
        """Return what is new; once it has ended, the same status again."""
        status = self._child.poll()
        if self._end is None and status is not None:
            self._end = News([], status, self._child.close())
        events = [self._events.popleft() for _ in range(len(self._events))]
        return (self._end or News([]))._replace(events=events)

    def stop(self, times: int) -> None:
        """Pass on the number of requests to stop."""
        if self._end is None:
            self._child.stop(times)
