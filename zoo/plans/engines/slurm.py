"""Runs as jobs of SLURM, submitted by submitit."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from zoo.errors import UserError
from zoo.plans.engines.attendant import Attendant
from zoo.plans.engines.base import Engine, Handle, Need, Send, Task
from zoo.runs.folder import BusyError
from zoo.support.checked import Count, Natural, checked
from zoo.support.files import open_regular, read_text, writing
from zoo.support.optional import installed

FOLDER = ".slurm"
"""Within the output folder: one for each run, and what submitit keeps of its jobs."""

_TICK = 0.25  # seconds between two looks at the process, on the node
_ASK = 10.0  # seconds between two questions to SLURM
_GRACE = 30.0  # seconds that the last events of a job may take to arrive after its end
_REQUEUES = 10_000  # a run may take as many time limits as it needs
_CANCELLED = "CANCELLED"
_LOST = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "TIMEOUT", "COMPLETED")


class Slurm(Engine):
    """Runs as jobs of SLURM, one job each; all nodes must share the output folder.

    Jobs outlive the command: the same command finds those that it left behind. Before its time
    limit, a job saves a checkpoint and goes back to the queue.

    Args:
        jobs: jobs in the queue at a time; by default one for every run.
        time: limit of a job in minutes.
        cpus: CPUs for each process of a run.
        gpus: GPUs for each process of a run with ``device: auto`` or ``cuda``.
        memory: GB of memory for each process.
        partition: where the jobs run.
        account: what they are charged to.
        qos: quality of service.
        constraint: features that a node must have.
        setup: shell commands to run first, such as ``module load cuda``.
        options: further options of sbatch, such as ``{mail-type: END}``.
        warning: seconds before the time limit at which a job saves.
    """

    name = "slurm"

    @checked
    def __init__(
        self,
        jobs: Count | None = None,
        time: Count = 240,
        cpus: Count = 4,
        gpus: Natural = 1,
        memory: float | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        setup: Sequence[str] = (),
        options: dict[str, Any] | None = None,
        warning: Count = 120,
    ) -> None:
        super().__init__(jobs)
        if memory is not None and not 0 < memory < math.inf:
            raise UserError(f"memory must be above 0, in GB, not {memory}")
        if warning >= 60 * time:
            raise UserError(f"warning must be less than the {60 * time} seconds of time={time}")
        for key in options or {}:
            if not re.fullmatch(r"[A-Za-z][A-Za-z-]*", str(key)):
                raise UserError(f"options: {key!r} is not the name of an option of sbatch")
        self._cpus, self._gpus, self._memory = cpus, gpus, memory
        self._settings = {
            "time": time,
            "partition": partition,
            "account": account,
            "qos": qos,
            "constraint": constraint,
            "setup": list(setup) or None,
            "additional_parameters": options,
            "signal_delay_s": warning,
        }
        self._asked = -math.inf

    def open(self, needs: Sequence[Need]) -> None:
        """Look for SLURM's commands."""
        _submitit()
        missing = [c for c in ("sbatch", "srun", "sacct") if shutil.which(c) is None]
        if missing:
            raise UserError(
                f"engine slurm: this machine has no {missing[0]}; run zoo on a "
                "machine of the cluster that submits jobs, such as its login node"
            )

    def start(self, task: Task, send: Send) -> Handle:
        """Submit the job of a run."""
        place = _place(task.output, task.name)
        lock = _locked(place)
        for name in ("events", "stop", "job"):
            (place / name).unlink(missing_ok=True)
        try:
            submitted = self._executor(task).submit(_Work(task, place, self._threads(task)))
        except Exception as error:
            lock.release()
            words = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"engine slurm: the job could not be submitted: {words}") from error
        try:
            (place / "job").write_text(submitted.job_id, encoding="utf-8")
        except OSError as error:  # no later command would find the job
            submitted.cancel(check=False)
            lock.release()
            raise UserError(f"{place}: cannot be written ({error.strerror})") from error
        return self._follow(submitted, place, lock, send)

    def find(self, output: Path, name: str, send: Send) -> Handle | None:
        """Return the job of a run that an earlier command submitted, if it has not ended."""
        place = _place(output, name)
        if not (place / "job").is_file():
            return None
        lock = _locked(place)
        job_id = read_text(place / "job")
        submitted = _submitit().SlurmJob(place.parent / "jobs", job_id)
        mode = "cache" if submitted.get_info("cache") else "force"
        if _has_ended(place) or submitted.watcher.is_done(job_id, mode=mode):
            lock.release()
            return None
        return self._follow(submitted, place, lock, send)

    def _follow(self, submitted: Any, place: Path, lock: FileLock, send: Send) -> Handle:
        return _SlurmJob(submitted, place, lock, send, self._state)

    def _executor(self, task: Task) -> Any:
        """Return what submits a run's job."""
        need = task.need
        executor = _submitit().SlurmExecutor(
            task.output / FOLDER / "jobs", max_num_timeout=_REQUEUES
        )
        settings = {**self._settings, "job_name": task.name, "cpus_per_task": self._threads(task)}
        if self._memory:
            settings["mem"] = f"{math.ceil(self._memory * need.processes * 1024)}MB"
        if self._gpus and need.wants_gpu:
            settings["gpus_per_node"] = self._gpus * need.processes
        executor.update_parameters(**{k: v for k, v in settings.items() if v is not None})
        return executor

    def _threads(self, task: Task) -> int:
        return self._cpus * task.need.processes

    def _state(self, submitted: Any, urgent: bool) -> str:
        """Return the state of a job; SLURM is asked about all jobs at once, now and then."""
        if time.monotonic() - self._asked > (1.0 if urgent else _ASK):
            submitted.watcher.update()
            self._asked = time.monotonic()
        return str(submitted.watcher.get_state(submitted.job_id, mode="cache")).upper()


class _SlurmJob(Handle):
    """A run that a job of SLURM carries out."""

    def __init__(
        self,
        submitted: Any,
        place: Path,
        lock: FileLock,
        send: Send,
        state: Callable[[Any, bool], str],
    ) -> None:
        self._submitted, self._place, self._lock = submitted, place, lock
        self._send, self._state = send, state
        self._asked, self._read, self._log = 0, 0, ""
        self._over_since: float | None = None
        self._stopped_there = False
        send({"state": "queued"})

    def poll(self) -> int | None:
        """Read the new events; if there are none at the end of the job, ask SLURM why."""
        status = self._read_events()
        if status is not None:
            return status
        state = self._state(self._submitted, self._asked > 0)
        done = self._submitted.watcher.is_done(self._submitted.job_id, mode="cache")
        if not done and self._asked > 2:  # SLURM does not answer, and the user has had enough
            job = self._submitted.job_id
            self._send({"stopped": f"stopped waiting for job {job}, which may still be queued"})
            return 1
        if not done:
            self._over_since = None
            return None
        self._over_since = self._over_since or time.monotonic()
        if time.monotonic() - self._over_since < (0 if self._asked else _GRACE):
            return None
        return self._how_it_ended(state)

    def stop(self, times: int) -> None:
        """Leave the request where the job looks for it; one that is not on a node is cancelled."""
        if times <= self._asked:
            return
        self._asked = times
        told = False
        with suppress(OSError):  # a full disk, or the folder was removed: SLURM can stop it
            (self._place / "stop").write_text(str(times), encoding="utf-8")
            told = True
        if times > 2 or not self._read or not told:
            self._submitted.cancel(check=False)

    def close(self) -> str:
        """Let the next command have the run."""
        self._lock.release()
        return self._log

    def abandon(self) -> None:
        """Leave the job to itself."""
        self.close()

    def _read_events(self) -> int | None:
        """Send what the job has written; return the exit status of its process, if it has ended.

        If SLURM has stopped it, only SLURM's own state of the job shows whether it goes on.
        """
        events = self._place / "events"
        if not events.is_file():
            return None
        with open_regular(events) as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                event = _parsed(line)
                if "status" not in event:
                    self._stopped_there = "stopped" in event and not self._asked
                    if not self._stopped_there:
                        self._send(event)
                elif not self._stopped_there:
                    self._log = event["log"]
                    return int(event["status"])
        return None

    def _how_it_ended(self, state: str) -> int:
        """Say what has become of a job that wrote nothing of its end."""
        if self._asked:
            self._send({"stopped": "stopped"})
        elif state.startswith(_LOST):
            self.lost = f"its job {self._submitted.job_id} was lost ({state})"
        else:
            what = "was cancelled" if state.startswith(_CANCELLED) else f"ended: {state}"
            folder = self._place.parent / "jobs"
            self._send(
                {"failed": f"its job {self._submitted.job_id} {what}; its output is in {folder}"}
            )
        return 1


class _Work:
    """What a job does on its node; submitit pickles it, and asks it to save before a time limit."""

    def __init__(self, task: Task, place: Path, threads: int) -> None:
        self._task, self._place, self._threads = task, place, threads
        self._attendant: Attendant | None = None

    def __call__(self) -> None:
        """Carry out the run."""
        self._attendant = Attendant(self._task, self._threads)
        while not self._pass_on(self._attendant):
            time.sleep(_TICK)

    def checkpoint(self) -> Any:
        """Let the run save and stop; return what continues it."""
        if self._attendant is not None:
            self._attendant.stop(1)
            while self._attendant.report().status is None:
                time.sleep(_TICK)
        self._write({"state": "queued"})
        return _submitit().helpers.DelayedSubmission(_Work(self._task, self._place, self._threads))

    def _pass_on(self, attendant: Attendant) -> bool:
        """Write the new events, read the requests to stop; return whether the run has ended."""
        report = attendant.report()
        for event in report.events:
            self._write(event)
        if report.status is not None:
            self._write({"status": report.status, "log": report.log})
            return True
        with suppress(OSError, ValueError):
            attendant.stop(int(read_text(self._place / "stop")))
        return False

    def _write(self, event: dict[str, Any]) -> None:
        with (self._place / "events").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def _place(output: Path, name: str) -> Path:
    """Return the folder in which the command and the job of a run meet."""
    place = output / FOLDER / name
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    return place


def _parsed(line: bytes) -> dict[str, Any]:
    """Return an event; an empty one for a line that was damaged."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return {}


def _has_ended(place: Path) -> bool:
    """Return whether the job has written how its process ended."""
    with suppress(OSError):
        return '"status"' in read_text(place / "events")
    return False


def _locked(place: Path) -> FileLock:
    """Take a run's folder; raise a BusyError if another command has its job."""
    lock = FileLock(place / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(f"{place}: another command has this run's job") from error
    return lock


def _submitit() -> Any:
    return installed("submitit", "engine slurm", "slurm")
