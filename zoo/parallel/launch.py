"""Processes of one run on this machine, started by torch's launcher."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, TypeVar

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from zoo.errors import MachineError
from zoo.parallel.ranks import LostError
from zoo.parallel.remote import receive, replay, send
from zoo.parallel.worker import LAUNCHER
from zoo.progress import Reporter
from zoo.support import signals

_T = TypeVar("_T")

_PROGRAM = "from zoo.parallel.worker import main; main()"
_LOGGER = "torch.distributed.elastic"  # what it reports is in the errors raised here


def launch(
    processes: int, function: Callable[..., _T], *arguments: Any, reporter: Reporter
) -> list[_T]:
    """Call ``function(*arguments, ranks, reporter)`` in several processes.

    It returns what each of them returns. The function and its arguments are pickled; each process
    gets its :class:`Ranks`. The reporter shows the progress of the first. A request to stop is
    passed on to all of them.

    Raises:
        MachineError: a process was lost.
        BaseException: what the first process to fail raised.
    """
    with Hub((function, arguments), processes, reporter) as hub:
        try:
            with tempfile.TemporaryDirectory() as logs, signals.kept(), _settings(hub, processes):
                _start(processes, logs)
        except ChildFailedError as error:
            rank, failure = _first(error)
            # Where a process was killed, the others were then asked to stop, which is no reason.
            hub.raise_failure(*([KeyboardInterrupt] if failure.exitcode < 0 else []))
            raise MachineError(_how_it_ended(rank, failure, processes)) from None
        except SignalException:
            hub.raise_failure()
            raise KeyboardInterrupt from None
        hub.raise_failure()
        return [hub.values[rank] for rank in range(processes)]


def _start(processes: int, logs: str) -> None:
    """Start the processes and wait for them."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
    # The processes find the same modules as this one.
    code = f"import sys; sys.path[:] = {sys.path!r}; {_PROGRAM}"
    elastic_launch(config, sys.executable)("-c", code)


class Hub:
    """Sends their work to the processes, shows the progress of the first, and keeps how they end.

    Attributes:
        values: what each process returned.
    """

    def __init__(self, work: Any, processes: int, reporter: Reporter) -> None:
        self._work, self._reporter = work, reporter
        self.key = secrets.token_bytes(32)
        self._listener = Listener(backlog=processes, authkey=self.key)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._failures: list[BaseException] = []
        self._pids: list[int] = []
        self._closing = False
        self.values: dict[int, Any] = {}

    @property
    def address(self) -> str:
        """The address for the processes to connect to."""
        return str(self._listener.address)

    def __enter__(self) -> Hub:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self._pids:  # after a second request to stop, some may be left
            with suppress(ChildProcessError, ProcessLookupError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    os.killpg(pid, signal.SIGKILL)
        self._finish()
        self._listener.close()

    def raise_failure(self, *consequences: type[BaseException]) -> None:
        """Raise what the first process to fail sent, if one did.

        Others only lost that one; ``consequences`` are further errors that have another reason.
        """
        self._finish()
        others: tuple[type[BaseException], ...] = (LostError, SystemExit, *consequences)
        own = [error for error in self._failures if not isinstance(error, others)]
        if own:
            raise own[0]

    def _finish(self) -> None:
        """Wait for all messages that were sent."""
        if not self._closing:
            self._closing = True
            with suppress(OSError):
                Client(self._listener.address, authkey=self.key).close()  # wakes the listener
            for thread in self._threads:
                thread.join()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection = self._listener.accept()
            except (EOFError, OSError, AuthenticationError):  # its process ended meanwhile
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: Connection) -> None:
        """Follow one process to its end."""
        with connection, suppress(EOFError, OSError):
            rank, pid = receive(connection)
            self._pids.append(pid)
            send(connection, *self._work)
            try:
                value = replay(connection, self._reporter)
            except (EOFError, OSError):
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
                self._failures.append(error)
            else:
                self.values[rank] = value


@contextmanager
def _settings(hub: Hub, processes: int) -> Iterator[None]:
    """Set, for the processes, the variables that they inherit."""
    mine = {
        LAUNCHER: f"{os.getpid()} {hub.key.hex()} {hub.address}",
        "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // processes)),
    }
    before = {name: os.environ.get(name) for name in mine}
    # Each of its loggers has a level of its own.
    levels = {
        name: logging.getLogger(name).level
        for name in list(logging.root.manager.loggerDict)
        if name.startswith(_LOGGER)
    }
    os.environ.update(mine)
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _first(error: ChildFailedError) -> tuple[int, ProcessFailure]:
    """Return the rank and the failure of the process that ended first.

    If one was killed, another may have noticed that in the same moment, and failed too.
    """
    return min(error.failures.items(), key=lambda item: (item[1].exitcode >= 0, item[1].timestamp))


def _how_it_ended(rank: int, failure: ProcessFailure, processes: int) -> str:
    """Return a message that names a process and says how it ended."""
    how = f"with status {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"by {signals.name_of(-failure.exitcode)}"
    return f"process {rank + 1} of {processes} was ended {how}, and the others with it"
