"""One run of a plan, and its progress."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError
from zoo.plans.engines.base import Need, Task
from zoo.runs.folder import LOG, BusyError, RunFolder
from zoo.support import signals

State = Literal[
    "waiting", "running", "in another process", "finished", "failed", "stopped", "pruned"
]

_LOOK = 1.0  # seconds between two looks at a run of another process
_LOSSES = 3  # times that a run is lost without getting further, after which it has failed


@dataclass
class Job:
    """A run of a plan, and its progress.

    Attributes:
        config: the experiment.
        settings: those that distinguish it in the plan, in words.
        folder: its run folder.
        state: where it is in the queue.
        doing: what a running process is doing, such as "training".
        iteration: the last reported iteration.
        loss: the last reported loss.
        recall: the last reported Recall at the first K, a fraction.
        reason: why it failed or where it was stopped.
        diverged: whether it failed because its loss became NaN or infinite.
        test: whether it ends by measuring the test classes; otherwise the held-out classes.
        pruned: whether it is to be stopped, since it will not be chosen.
    """

    config: Config
    settings: str
    folder: RunFolder
    state: State = "waiting"
    doing: str = ""
    iteration: int | None = None
    loss: float | None = None
    recall: float | None = None
    reason: str = ""
    diverged: bool = False
    test: bool = True
    pruned: bool = False
    _losses: int = field(default=0, repr=False)
    _lost_at: int = field(default=-1, repr=False)
    _started: tuple[float, int] = field(default=(0.0, 0), repr=False)
    _looked: float = field(default=-math.inf, repr=False)
    _keep_log: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.config.run_name()

    @property
    def total(self) -> int:
        """Iterations of training."""
        return self.config.train.iterations

    @property
    def need(self) -> Need:
        """What it needs of an engine."""
        return Need(self.config.device, self.config.train.processes)

    @property
    def output(self) -> Path:
        """The absolute folder of the run folders."""
        return self.folder.path.parent.absolute()

    @property
    def task(self) -> Task:
        """The run, in a form that can be sent to another machine."""
        return Task(self.name, loading.dump(self.config), self.need, self.test, self.output)

    @property
    def done(self) -> bool:
        """Whether its folder has the final record."""
        return self.folder.finished or (not self.test and self.folder.validated)

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training left at the pace so far; None if unknown."""
        began, start = self._started
        if self.state != "running" or not self.iteration or self.iteration <= start:
            return None
        pace = (time.monotonic() - began) / (self.iteration - start)
        return (self.total - self.iteration) * pace

    @property
    def due(self) -> bool:
        """Whether to look at its folder: a run of another process is not looked at constantly."""
        return time.monotonic() - self._looked > _LOOK

    def look(self) -> None:
        """Set the state from its folder, before spending seconds on starting a process for it.

        Another process may have finished it or be running it; the folder may not be writable.
        """
        self._looked = time.monotonic()
        try:
            with self.folder.locked():
                self.state = "finished" if self.done else "waiting"
        except BusyError:
            self.state = "in another process"
        except UserError as error:
            self.state, self.reason = "failed", str(error)

    def mark_started(self) -> None:
        """Record that its process is being started."""
        self.state, self.doing, self.reason = "running", "starting", ""
        with suppress(OSError):  # remove the log of an earlier failure
            (self.folder.path / LOG).unlink(missing_ok=True)

    def mark_lost(self, reason: str) -> bool:
        """Record that it ended through no fault of its own; return whether to start it again."""
        got_further = (self.iteration or 0) > self._lost_at
        self._losses = 1 if got_further else self._losses + 1
        self._lost_at = max(self._lost_at, self.iteration or 0)
        if self._losses > _LOSSES:
            self.state = "failed"
            self.reason = f"{reason}; {self._losses} times without getting further"
            return False
        self.state, self.reason = "waiting", reason
        return True

    def mark_ended(self, status: int, log: str, stopping: bool) -> None:
        """Set the final state, from its events and from how its process ended."""
        if self.pruned and self.state in ("running", "stopped"):
            self.state, self.reason = "pruned", ""
        elif self.state == "running" and stopping:
            self.state = "stopped"
        elif self.state == "running":
            self.state, self.reason, self._keep_log = "failed", _how_it_ended(status), True
        elif self.state == "stopped" and not stopping:
            self.state, self.reason = "failed", f"{self.reason}, by a signal from outside"
        if self.state == "failed" and self._keep_log and log.strip():
            with suppress(UserError, OSError):
                self.folder.path.mkdir(exist_ok=True)  # missing if the run could not begin
                self.folder.write(LOG, log.encode())
                self.reason += f"; its output is in {self.folder.path / LOG}"

    def update(self, event: dict[str, Any]) -> None:
        """Apply an event that its process sent."""
        self.doing = event.get("state", self.doing)
        if "start" in event:
            self._started = time.monotonic(), event["start"]
            self.iteration = event["start"]
        self.iteration = event.get("iteration", self.iteration)
        self.loss = self.loss if event.get("loss") is None else event["loss"]
        self.recall = self.recall if event.get("recall") is None else event["recall"]
        if "finished" in event:
            self.state, self.recall = "finished", event["finished"]
            self.iteration = self.total or None
        if "busy" in event:
            self.state = "in another process"
        for state in ("failed", "stopped"):
            if state in event:
                self.state, self.reason = state, event[state]
                self._keep_log = event.get("log", False)
        self.diverged = event.get("diverged", self.diverged)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    name = signals.name_of(-status)
    hint = "; the memory may have been full" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"
