"""A stand-in for SLURM on one machine: sbatch, srun, sacct, scancel and scontrol.

It does with jobs what SLURM does: nodes with one job each, a queue, the environment of a job, a
signal before the time limit, scancel, requeue, and nodes that fail. `install` writes the commands
into a folder, `Daemon` is the controller. Its state is in files: a folder for each job.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel", "scontrol")


def install(folder):
    """Write the commands into a folder for PATH; return the folder of the state."""
    state = folder / "slurm"
    (folder / "bin").mkdir(parents=True)
    state.mkdir()
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"import slurm_standin; slurm_standin.{name}({str(state)!r}, sys.argv[1:])\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return state


def job_of(state, number):
    return Path(state) / str(number)


def read(job, name, default=""):
    with suppress(OSError):
        return (job / name).read_text()
    return default


def put(job, name, text):
    (job / f"{name}.new").write_text(str(text))
    (job / f"{name}.new").replace(job / name)


# ---- the commands


def sbatch(state, arguments):
    script = Path(arguments[-1]).read_text()
    number = 1
    while True:
        try:
            job_of(state, number).mkdir()
            break
        except FileExistsError:
            number += 1
    job = job_of(state, number)
    put(job, "script", script)
    put(job, "environment", json.dumps(dict(os.environ)))
    put(job, "cwd", Path.cwd())
    put(job, "state", "PENDING")
    sys.stdout.write(f"Submitted batch job {number}\n")


def srun(state, arguments):
    """Run a command as the one task of the job, with its output where it is wanted."""
    output = arguments[arguments.index("--output") + 1]
    error = arguments[arguments.index("--error") + 1]
    command = arguments[max(arguments.index(output), arguments.index(error)) + 1 :]
    number = os.environ["SLURM_JOB_ID"]
    files = [p.replace("%j", number).replace("%t", "0") for p in (output, error)]
    with open(files[0], "ab") as out, open(files[1], "ab") as err:  # noqa: PTH123
        task = subprocess.Popen(command, stdout=out, stderr=err)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM"):  # they are for the task
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.exit(task.wait())


def sacct(state, arguments):
    sys.stdout.write("JobID|State|NodeList\n")
    for number in [arguments[i + 1] for i, a in enumerate(arguments) if a == "-j"]:
        found = read(job_of(state, number), "state")
        if found:
            sys.stdout.write(f"{number}|{found}|{read(job_of(state, number), 'node')}\n")


def scancel(state, arguments):
    number = next(a for a in arguments if a.isdigit())
    put(job_of(state, number), "cancel", "")


def scontrol(state, arguments):
    assert arguments[0] == "requeue", arguments
    put(job_of(state, arguments[1]), "requeue", "")


# ---- the controller


class Daemon:
    """Starts jobs on nodes, and ends them."""

    def __init__(self, state, nodes):
        self.state = Path(state)
        self.nodes = dict.fromkeys(
            f"node{i}" for i in range(nodes)
        )  # name -> (job, process, signals)
        self.signalled = []
        self.starts = []  # (job, node)
        self._down = []
        self._limits = {}  # job -> when its time is over
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()
        for at in filter(None, self.nodes.values()):
            self._signal(at[1], signal.SIGKILL)

    def fail(self, node):
        """Let a node fail: all its processes are gone, and its job goes back to the queue."""
        self._down.append(node)

    def run_out(self, number):
        """Let the time limit of a job come: the signal now, the end after the warning's seconds."""
        script = read(job_of(self.state, number), "script")
        name, before = re.search(r"#SBATCH --signal=(\w+)@(\d+)", script).groups()
        self._limits[str(number)] = (name, time.monotonic() + int(before))

    def _loop(self):
        while not self._end.wait(0.05):
            for node in [node for node in self._down if node in self.nodes]:
                at = self.nodes.pop(node)
                if at is not None:
                    self._signal(at[1], signal.SIGKILL)
                    put(at[0], "state", "PENDING")
            for node in self.nodes:
                self._look_at(node)
            waiting = [job for job in self._jobs() if read(job, "state") == "PENDING"]
            for job in waiting:
                if (job / "cancel").exists():
                    put(job, "state", "CANCELLED by 0")
            free = [node for node, at in self.nodes.items() if at is None]
            for node, job in zip(free, waiting, strict=False):
                if read(job, "state") == "PENDING":
                    self._start(node, job)

    def _jobs(self):
        found = [path for path in self.state.iterdir() if path.name.isdigit()]
        return sorted(found, key=lambda path: int(path.name))

    def _start(self, node, job):
        (job / "requeue").unlink(missing_ok=True)
        environment = json.loads(read(job, "environment"))
        environment |= {"SLURM_JOB_ID": job.name, "SLURM_JOB_NODELIST": node, "SLURM_NTASKS": "1"}
        environment |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
        process = subprocess.Popen(
            ["bash", "-c", read(job, "script")],
            env=environment,
            cwd=read(job, "cwd"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        put(job, "node", node)
        put(job, "state", "RUNNING")
        self.starts.append((int(job.name), node))
        self.nodes[node] = (job, process, set())

    def _look_at(self, node):
        if self.nodes[node] is None:
            return
        job, process, sent = self.nodes[node]
        name, limit = self._limits.get(job.name, ("", math.inf))
        if (job / "cancel").exists() and "TERM" not in sent:
            sent.add("TERM")
            self._signal(process, signal.SIGTERM)
        if name and name not in sent:
            sent.add(name)
            self.signalled.append((int(job.name), name))
            self._signal(process, getattr(signal, f"SIG{name}"))
        if time.monotonic() > limit and process.poll() is None:
            self._signal(process, signal.SIGKILL)
            process.wait()
            self._over(node, job, "TIMEOUT")
        elif process.poll() is not None:
            failed = "FAILED" if process.returncode else "COMPLETED"
            self._over(node, job, "CANCELLED by 0" if (job / "cancel").exists() else failed)

    def _over(self, node, job, state):
        self.nodes[node] = None
        self._limits.pop(job.name, None)
        put(job, "state", "PENDING" if (job / "requeue").exists() else state)

    def _signal(self, process, number):
        """Send a signal to all processes of a job, as slurmstepd does."""
        for pid in reversed(list(descendants(process.pid))):
            if pid != process.pid or number in (signal.SIGKILL, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def descendants(pid):
    """Yield a process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from descendants(int(child))
