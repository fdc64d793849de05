"""Runs as processes: a limited number at a time, each on its own device, stopped together."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NamedTuple

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError
from zoo.plans.process import END, NO_TEST, STOP
from zoo.runs.folder import LOG, BusyError, RunFolder
from zoo.support import signals

State = Literal["waiting", "running", "in another process", "finished", "failed", "stopped"]

PROGRAM = "from zoo.plans.process import main; main()"
_TICK = 0.25  # seconds between two looks at the processes
_LOOK = 1.0  # seconds between two looks at a run of another process
_ANY_GPU = ("auto", "cuda")


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
    def processes(self) -> int:
        """Processes of the run."""
        return self.config.train.processes

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
        self.state, self.doing = "running", "starting"
        with suppress(OSError):  # remove the log of an earlier failure
            (self.folder.path / LOG).unlink(missing_ok=True)

    def mark_ended(self, status: int, log: str, stopping: bool) -> None:
        """Set the final state, from its events and from how its process ended."""
        if self.state == "running" and stopping:
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


Events = queue.Queue[tuple[Job, dict[str, Any]]]


class DeviceSlot(NamedTuple):
    """Where a run executes: its devices, and the environment variables that select them."""

    devices: tuple[str, ...]
    environment: dict[str, str]


class DeviceSlots:
    """Assigns devices to runs.

    Args:
        gpus: number of GPUs present.
        limit: runs at a time; by default one on each device.
    """

    def __init__(self, gpus: int, limit: int | None = None) -> None:
        self._gpus = [f"cuda:{i}" for i in range(gpus)]
        self._limit = limit
        self._busy: Counter[str] = Counter()
        self._running = 0
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._visible = visible.split(",") if visible else list(map(str, range(gpus)))

    def at_a_time(self, wanted: Sequence[str], processes: int = 1) -> int:
        """Return how many runs that want these devices can run at the same time.

        ``processes`` is the largest number of processes of a run.
        """
        devices = {d for w in wanted for d in self._candidates(w)}
        return min(len(wanted), self._limit or max(1, len(devices) // processes))

    def acquire(self, wanted: str, processes: int = 1) -> DeviceSlot | None:
        """Return free devices for a run whose config has ``device: wanted``, or None.

        Each of its processes gets a GPU of its own, as far as there are GPUs.
        """
        if self._limit and self._running >= self._limit:
            return None
        candidates = self._candidates(wanted)
        devices = sorted(candidates, key=lambda d: self._busy[d])[:processes]
        if self._busy[devices[-1]] >= self._share(len(candidates)):
            return None
        self._running += 1
        self._busy.update(devices)
        # A process that sees only its GPUs cannot allocate memory on another one by mistake.
        chosen = wanted in _ANY_GPU and devices[0] in self._gpus
        visible = ",".join(self._visible[int(device[5:])] for device in devices if chosen)
        return DeviceSlot(tuple(devices), {"CUDA_VISIBLE_DEVICES": visible} if chosen else {})

    def release(self, slot: DeviceSlot) -> None:
        """Make the devices free again."""
        self._running -= 1
        self._busy.subtract(slot.devices)

    def _candidates(self, wanted: str) -> list[str]:
        return self._gpus if wanted in _ANY_GPU and self._gpus else [wanted]

    def _share(self, devices: int) -> int:
        return -(-self._limit // devices) if self._limit else 1


class Child:
    """The process of one run.

    Args:
        job: the run.
        slot: where it executes.
        threads: CPU threads that it may use; None: no limit.
        events: the queue that receives its events.
    """

    def __init__(self, job: Job, slot: DeviceSlot, threads: int | None, events: Events) -> None:
        self.job, self.slot = job, slot
        self._asked = 0
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        environment = {**os.environ, **slot.environment}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        # The child finds the same modules as this process. It gets its own session, since Ctrl-C
        # reaches a whole session and only this process is to ask the child to stop.
        code = f"import sys; sys.path[:] = {sys.path!r}; {PROGRAM}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, job.name, *([] if job.test else [NO_TEST])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # same, on Windows
        )
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()
        self._write(f"{loading.dump(job.config)}{END}\n".encode())

    def stop(self, times: int) -> None:
        """Ask it to save and stop; the second time to stop without saving; the third time, kill it.

        It is asked through its stdin: on Windows, a signal would end it at once.
        """
        while self._asked < min(times, 3):
            self._asked += 1
            self.process.kill() if self._asked == 3 else self._write(STOP)

    def close(self) -> str:
        """Wait until all of its events are read; return what it wrote to stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        self._reader.join(timeout=1)
        if not self._reader.is_alive():  # a process that it started may hold the pipe
            self.process.stdout.close()
        with self._log:
            self._log.seek(0)
            return self._log.read().decode(errors="replace")

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended already; the scheduler will see that
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def _read(self, events: Events) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # an incomplete line
                events.put((self.job, json.loads(line)))


class Scheduler:
    """Runs all jobs to their end, or stops them if a signal asks for it.

    A run that another process is running is left to it and looked at again until it is free: then
    it is finished, or is continued here.

    Args:
        jobs: those to run, in their order.
        slots: the devices.
        changed: called whenever a job has changed its state.
        tick: called a few times a second.
        threads: for each process; None: no limit.
        stopping: called once when a signal asks to stop.
        left_over: called once when only runs of other processes are left.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        slots: DeviceSlots,
        changed: Callable[[Job], None],
        tick: Callable[[], None],
        threads: int | None = None,
        stopping: Callable[[], None] = lambda: None,
        left_over: Callable[[Sequence[Job]], None] = lambda jobs: None,
    ) -> None:
        self._waiting = list(jobs)
        self._stopping, self._left_over = stopping, left_over
        self._slots, self._changed, self._tick, self._threads = slots, changed, tick, threads
        self._children: list[Child] = []
        self._events: Events = queue.Queue()
        self.signals = 0

    def run(self) -> None:
        """Run the jobs; return when every process has ended."""
        stopping, left_over = _once(self._stopping), _once(self._left_over)
        with signals.on_stop(self._count_signal):
            try:
                while self._children or (self._waiting and not self.signals):
                    if self.signals:
                        stopping()
                    else:
                        self._start_what_fits()
                    if self._waiting and not self._children and not self.signals:
                        left_over(self._waiting)
                    self._receive(_TICK)
                    for child in self._children:
                        child.stop(self.signals)
                    self._collect_ended()
                    self._tick()
            finally:
                for child in self._children:
                    child.process.kill()

    def _start_what_fits(self) -> None:
        for job in sorted(self._waiting, key=lambda job: job.state != "waiting"):
            slot = self._slots.acquire(job.config.device, job.processes) if job.due else None
            if slot is None:
                continue
            before = job.state
            job.look()
            if job.state != "in another process":
                self._waiting.remove(job)
            if job.state == "waiting":
                job.mark_started()
                self._children.append(Child(job, slot, self._threads, self._events))
            else:
                self._slots.release(slot)
            if job.state != before:
                self._changed(job)

    def _receive(self, wait: float) -> None:
        """Apply all events in the queue, waiting a moment for the first."""
        with suppress(queue.Empty):
            job, event = self._events.get(timeout=wait)
            while True:
                job.update(event)
                if event.get("start", job.total) < job.total:
                    self._changed(job)
                job, event = self._events.get_nowait()

    def _collect_ended(self) -> None:
        for child in [c for c in self._children if c.process.poll() is not None]:
            log = child.close()
            self._receive(0)
            self._children.remove(child)
            self._slots.release(child.slot)
            child.job.mark_ended(child.process.returncode, log, stopping=self.signals > 0)
            if child.job.state == "in another process":
                self._waiting.append(child.job)
            self._changed(child.job)

    def _count_signal(self) -> None:
        """Count a signal; the main loop passes it on to the runs and kills them at the third."""
        self.signals += 1


def _once(call: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls the given one the first time and does nothing later."""
    calls = iter([call])
    return lambda *arguments: next(calls, lambda *_: None)(*arguments)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    name = signals.name_of(-status)
    hint = "; the memory may have been full" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"
