"""Runs as processes: so many at a time, each on a device of its own, stopped all together."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
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

State = Literal["waiting", "at work", "in another process", "finished", "failed", "stopped"]

PROGRAM = "from zoo.plans.process import main; main()"
_TICK = 0.25  # seconds between two looks at the processes
_LOOK = 1.0  # seconds between two looks at a run that another process has
_ANY_GPU = ("auto", "cuda")


@dataclass
class Job:
    """A run of a plan, and how it is getting on.

    Attributes:
        config: the experiment.
        settings: what sets it apart, in words.
        folder: its run folder.
        state: where it is in the queue.
        doing: what a run at work does at the moment.
        iteration: the last that is known of.
        total: iterations of training.
        loss: the last that was told.
        recall: the last Recall at the first K, a fraction.
        reason: why it failed or where it was stopped.
        diverged: whether it failed as its loss was no longer a number: its settings are no good.
        test: whether it ends with the test classes, or with those that were held out.
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
    _from: tuple[float, int] = field(default=(0.0, 0), repr=False)
    _looked: float = field(default=-math.inf, repr=False)
    _log_tells_more: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.config.run_name()

    @property
    def total(self) -> int:
        """Iterations of training."""
        return self.config.train.iterations

    @property
    def done(self) -> bool:
        """Whether its folder has all that it is to leave."""
        return self.folder.finished or (not self.test and self.folder.validated)

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training still to come, at the pace so far; None where that is unknown."""
        began, start = self._from
        if self.state != "at work" or not self.iteration or self.iteration <= start:
            return None
        pace = (time.monotonic() - began) / (self.iteration - start)
        return (self.total - self.iteration) * pace

    @property
    def due(self) -> bool:
        """Whether it is worth a look: not again at once where another process has the run."""
        return time.monotonic() - self._looked > _LOOK

    def look(self) -> None:
        """Decide from its folder what is left to do, before seconds go into a process for it.

        Somebody else may have finished it, or have it; the folder may be one that nobody can write.
        """
        self._looked = time.monotonic()
        try:
            with self.folder.locked():
                self.state = "finished" if self.done else "waiting"
        except BusyError:
            self.state = "in another process"
        except UserError as error:
            self.state, self.reason = "failed", str(error)

    def begin(self) -> None:
        """Note that its process is being started."""
        self.state, self.doing = "at work", "starting"
        with suppress(OSError):  # what an earlier failure left
            (self.folder.path / LOG).unlink(missing_ok=True)

    def end(self, status: int, log: str, stopping: bool) -> None:
        """Decide what became of it, from what it told and how its process ended."""
        if self.state == "at work" and stopping:
            self.state = "stopped"
        elif self.state == "at work":
            self.state, self.reason, self._log_tells_more = "failed", _how_it_ended(status), True
        elif self.state == "stopped" and not stopping:
            self.state, self.reason = "failed", f"{self.reason}, by somebody else"
        if self.state == "failed" and self._log_tells_more and log.strip():
            with suppress(UserError, OSError):
                self.folder.path.mkdir(exist_ok=True)  # a run that could not begin leaves none
                self.folder.write(LOG, log.encode())
                self.reason += f"; {self.folder.path / LOG} has all that it said"

    def hear(self, event: dict[str, Any]) -> None:
        """Take in what its process tells."""
        self.doing = event.get("state", self.doing)
        if "start" in event:
            self._from = time.monotonic(), event["start"]
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
                self._log_tells_more = event.get("log", False)
        self.diverged = event.get("diverged", self.diverged)


Events = queue.Queue[tuple[Job, dict[str, Any]]]


class DeviceSlot(NamedTuple):
    """Where a run is at work: a device, and what its process has to know of it."""

    device: str
    environment: dict[str, str]


class DeviceSlots:
    """Hands out devices.

    Args:
        gpus: number of GPUs present.
        limit: runs at a time; by default one on each device.
    """

    def __init__(self, gpus: int, limit: int | None = None) -> None:
        self._gpus = [f"cuda:{i}" for i in range(gpus)]
        self._limit = limit
        self._busy: Counter[str] = Counter()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._visible = visible.split(",") if visible else list(map(str, range(gpus)))

    def at_a_time(self, wanted: Sequence[str]) -> int:
        """Return how many runs that want these devices can be at work at the same time."""
        devices = {d for w in wanted for d in self._candidates(w)}
        return min(len(wanted), self._limit or len(devices))

    def take(self, wanted: str) -> DeviceSlot | None:
        """Return a device that is free for a run whose config says ``device: wanted``."""
        if self._limit and self._busy.total() >= self._limit:
            return None
        devices = self._candidates(wanted)
        device = min(devices, key=lambda d: self._busy[d])
        if self._busy[device] >= self._share(len(devices)):
            return None
        self._busy[device] += 1
        # A process that sees one GPU only cannot take memory on another one by mistake.
        chosen = wanted in _ANY_GPU and device in self._gpus
        of_gpu = {"CUDA_VISIBLE_DEVICES": self._visible[int(device[5:])]} if chosen else {}
        return DeviceSlot(device, of_gpu)

    def give_back(self, place: DeviceSlot) -> None:
        """Take a device back."""
        self._busy[place.device] -= 1

    def _candidates(self, wanted: str) -> list[str]:
        return self._gpus if wanted in _ANY_GPU and self._gpus else [wanted]

    def _share(self, devices: int) -> int:
        return -(-self._limit // devices) if self._limit else 1


class Child:
    """The process of one run.

    Args:
        job: the run; what its process tells, it hears by way of ``events``.
        place: where it is at work.
        threads: of the CPU that it may use; None: as many as it likes.
        events: where what it tells is put.
    """

    def __init__(self, job: Job, place: DeviceSlot, threads: int | None, events: Events) -> None:
        self.job, self.place = job, place
        self._asked = 0
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has ended
        environment = {**os.environ, **place.environment}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        # It sees the modules that this process sees. Its session is its own, since Ctrl-C goes to
        # all of a session, and it is to be told to stop once, by this process.
        code = f"import sys; sys.path[:] = {sys.path!r}; {PROGRAM}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, job.name, *([] if job.test else [NO_TEST])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # that, on Windows
        )
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()
        self._write(f"{loading.dump(job.config)}{END}\n".encode())

    def stop(self, times: int) -> None:
        """Ask it to save and to stop; asked twice, it does not save, and the third time it dies.

        It is asked by way of its stdin: on Windows, a signal would end it there and then.
        """
        while self._asked < min(times, 3):
            self._asked += 1
            self.process.kill() if self._asked == 3 else self._write(STOP)

    def close(self) -> str:
        """Wait until all that it told was read; return what it wrote to stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        self._reader.join(timeout=1)
        if not self._reader.is_alive():  # a process that it left behind may hold the pipe
            self.process.stdout.close()
        with self._log:
            self._log.seek(0)
            return self._log.read().decode(errors="replace")

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended already, which is seen soon
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def _read(self, events: Events) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # a line that was cut short
                events.put((self.job, json.loads(line)))


class Scheduler:
    """Brings all jobs to their end, or to a stop if a signal asks for it.

    A run that another process has is left to it, and looked at again until it is free: then it is
    finished, or it is taken up here.

    Args:
        jobs: those to do, in their order.
        places: the devices.
        changed: is called whenever a job has changed its state.
        tick: is called a few times a second.
        threads: for each process; None: as many as it likes.
        stopping: is called once a signal was heard, which ends the work.
        left_over: is called once nothing is left but runs that another process has.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        places: DeviceSlots,
        changed: Callable[[Job], None],
        tick: Callable[[], None],
        threads: int | None = None,
        stopping: Callable[[], None] = lambda: None,
        left_over: Callable[[Sequence[Job]], None] = lambda jobs: None,
    ) -> None:
        self._waiting = list(jobs)
        self._stopping, self._left_over = stopping, left_over
        self._places, self._changed, self._tick, self._threads = places, changed, tick, threads
        self._children: list[Child] = []
        self._events: Events = queue.Queue()
        self.signals = 0

    def run(self) -> None:
        """Return when nothing is at work any more."""
        stopping, left_over = _once(self._stopping), _once(self._left_over)
        with signals.on_stop(self._ask):
            try:
                while self._children or (self._waiting and not self.signals):
                    if self.signals:
                        stopping()
                    else:
                        self._start_what_fits()
                    if self._waiting and not self._children and not self.signals:
                        left_over(self._waiting)
                    self._hear(_TICK)
                    for child in self._children:
                        child.stop(self.signals)
                    self._bury()
                    self._tick()
            finally:
                for child in self._children:
                    child.process.kill()

    def _start_what_fits(self) -> None:
        for job in sorted(self._waiting, key=lambda job: job.state != "waiting"):
            place = self._places.take(job.config.device) if job.due else None
            if place is None:
                continue
            before = job.state
            job.look()
            if job.state != "in another process":
                self._waiting.remove(job)
            if job.state == "waiting":
                job.begin()
                self._children.append(Child(job, place, self._threads, self._events))
            else:
                self._places.give_back(place)
            if job.state != before:
                self._changed(job)

    def _hear(self, wait: float) -> None:
        """Take in all that was told, waiting a moment for the first of it."""
        with suppress(queue.Empty):
            job, event = self._events.get(timeout=wait)
            while True:
                job.hear(event)
                if event.get("start", job.total) < job.total:
                    self._changed(job)
                job, event = self._events.get_nowait()

    def _bury(self) -> None:
        for child in [c for c in self._children if c.process.poll() is not None]:
            log = child.close()
            self._hear(0)
            self._children.remove(child)
            self._places.give_back(child.place)
            child.job.end(child.process.returncode, log, stopping=self.signals > 0)
            if child.job.state == "in another process":
                self._waiting.append(child.job)
            self._changed(child.job)

    def _ask(self) -> None:
        """Pass a signal on to the runs; the third time they are killed."""
        self.signals += 1


def _once(call: Callable[..., None]) -> Callable[..., None]:
    """Return what calls a function the first time, and then does nothing."""
    calls = iter([call])
    return lambda *arguments: next(calls, lambda *_: None)(*arguments)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; the memory may have been full" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"
