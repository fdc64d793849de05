"""Bring the runs of a plan to their end: start them where there is room, stop them together."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from zoo.errors import UserError, blaming
from zoo.plans.engines.base import Engine, Handle
from zoo.plans.jobs import Job
from zoo.runs.folder import BusyError
from zoo.support import signals

_TICK = 0.25  # seconds between two looks at the runs


class Display(Protocol):
    """Shows the progress of runs."""

    def changed(self, job: Job) -> None:
        """Show that a job has changed its state."""

    def tick(self) -> None:
        """Update what is shown; called a few times a second."""

    def stopping(self) -> None:
        """Show that a signal has asked to stop; called once."""

    def left_over(self, jobs: Sequence[Job]) -> None:
        """Show that only runs of other processes are left; called once."""


class _Started(NamedTuple):
    job: Job
    handle: Handle


class Scheduler:
    """Runs all jobs to their end, or stops them if a signal asks for it.

    A run that another process is running is left to it and looked at again until it is free: then
    it is finished, or is continued here. A run that an engine has lost is started again.

    Args:
        jobs: those to run, in their order.
        engine: carries them out.
        display: shows their progress.
        more: returns one more job when there is room for it; None if there is none now.
        observe: called with a job after each of its events, and at its end.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        engine: Engine,
        display: Display,
        more: Callable[[], Job | None] = lambda: None,
        observe: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._waiting = list(jobs)
        self._engine, self._display = engine, display
        self._more, self._observe = more, observe
        self._started: list[_Started] = []
        self._events: queue.Queue[tuple[Job, dict[str, Any]]] = queue.Queue()
        self.signals = 0

    def run(self) -> None:
        """Run the jobs; return when all of them have ended."""
        stopping, left_over = _once(self._display.stopping), _once(self._display.left_over)
        with signals.on_stop(self._count_signal):
            try:
                self._start_what_fits()
                while self._started or (self._waiting and not self.signals):
                    if self.signals:
                        stopping()
                    elif self._waiting and not self._started:
                        left_over(self._waiting)
                    self._receive(_TICK)
                    self._pass_on_requests()
                    self._collect_ended()
                    self._display.tick()
                    if not self.signals:
                        self._start_what_fits()
            finally:
                for _, handle in self._started:
                    handle.abandon()

    def _start_what_fits(self) -> None:
        for job in sorted(self._waiting, key=lambda job: job.state != "waiting"):
            if job.due and self._has_room(job):
                self._start(job)
        while not any(job.state == "waiting" for job in self._waiting):
            added = self._more()
            if added is None:
                break
            self._waiting.append(added)
            if self._has_room(added):
                self._start(added)

    def _has_room(self, job: Job) -> bool:
        most = self._engine.jobs
        within = most is None or len(self._started) < most
        return within and self._engine.has_room(job.need)

    def _start(self, job: Job) -> None:
        """Start a run, unless its folder shows that there is nothing to do now."""
        before, handle, send = job.state, None, partial(self._put, job)
        try:
            handle = self._engine.find(job.output, job.name, send)
            if handle is None:
                job.look()
                if job.state == "waiting":
                    with blaming(f"engine {self._engine.name}"):
                        handle = self._engine.start(job.task, send)
                    if handle is None:
                        raise UserError(f"engine {self._engine.name}: start() returned None")
        except BusyError:
            job.state = "in another process"
        except UserError as error:
            job.state, job.reason = "failed", str(error)
        if handle is not None:
            job.mark_started()
            self._started.append(_Started(job, handle))
        if job.state != "in another process":
            self._waiting.remove(job)
        if job.state != before:
            self._display.changed(job)
        self._observe(job)

    def _put(self, job: Job, event: dict[str, Any]) -> None:
        self._events.put((job, event))

    def _receive(self, wait: float) -> None:
        """Apply all events in the queue, waiting a moment for the first."""
        with suppress(queue.Empty):
            job, event = self._events.get(timeout=wait)
            while True:
                job.update(event)
                self._observe(job)
                if event.get("start", job.total) < job.total:
                    self._display.changed(job)
                job, event = self._events.get_nowait()

    def _pass_on_requests(self) -> None:
        for job, handle in self._started:
            handle.stop(max(self.signals, job.pruned))

    def _collect_ended(self) -> None:
        for started in list(self._started):
            job, handle = started
            status = handle.poll()
            if status is None:
                continue
            log = handle.close()
            self._receive(0)
            self._started.remove(started)
            if handle.lost and not self.signals and not job.done and job.mark_lost(handle.lost):
                self._waiting.append(job)
            else:
                job.mark_ended(status, log, stopping=self.signals > 0)
            if job.state == "in another process":
                self._waiting.append(job)
            self._display.changed(job)
            self._observe(job)

    def _count_signal(self) -> None:
        """Count a signal; the main loop passes it on to the runs and kills them at the third."""
        self.signals += 1


def _once(call: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls the given one the first time and does nothing later."""
    calls = iter([call])
    return lambda *arguments: next(calls, lambda *_: None)(*arguments)
