"""One process of several: what it does before its work, and what it says at its end."""

from __future__ import annotations

import _thread
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from zoo.errors import UserError, words_of
from zoo.parallel.ranks import Ranks
from zoo.parallel.remote import RemoteReporter, receive, send
from zoo.progress import Reporter
from zoo.support import signals

LAUNCHER = "ZOO_LAUNCHER"
"""The variable with the number, key and address of the process that waits for this one's result."""

_PATIENCE = timedelta(hours=6)
"""With another process, which may be measuring; one that has ended is noticed at once."""

_TO_START = timedelta(minutes=10)

_LOOK = 0.5  # seconds between two looks whether the launcher is still there
_GRACE = 60.0  # seconds to save in after it has gone


def main() -> None:
    """Do this process's part of the work that the launcher sends."""
    launcher, key, address = os.environ[LAUNCHER].split(" ", 2)
    _watch(int(launcher))
    signals.end_as_ctrl_c_does()
    try:
        connection = Client(address, authkey=bytes.fromhex(key))
        send(connection, int(os.environ["RANK"]), os.getpid())
        function, arguments = receive(connection)
    except (EOFError, OSError, AuthenticationError, KeyboardInterrupt):  # the launcher is gone
        sys.exit(1)
    try:
        with joined() as ranks:
            reporter = RemoteReporter(connection) if ranks.first else Reporter(quiet=True)
            value = function(*arguments, ranks, reporter)
            send(connection, "done", value)
    except SystemExit:  # another process reports what has ended this one
        signals.ignore()
        raise
    except BaseException as error:  # noqa: BLE001 - the launcher decides what to do about it
        signals.ignore()  # the launcher's, which would show as a traceback of what Python ends with
        _send_failure(connection, error)
        sys.exit(1)
    signals.ignore()


@contextmanager
def joined(wanted: int = 1) -> Iterator[Ranks]:
    """Join the other processes that torch's launcher started.

    If several of them fail, only the error of the first is raised; the others end silently.

    Raises:
        UserError: a config wants another number of them, and not just one.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if wanted not in (1, size):
        raise UserError(f"train.processes={wanted}, but {size} were started; leave it out")
    if LAUNCHER not in os.environ:
        _watch(os.getppid())
    if rank:
        warnings.simplefilter("ignore")  # the first process gives them
    if size == 1:
        yield Ranks()
        return
    store, *_ = next(rendezvous("env://", timeout=_TO_START))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield Ranks(dist.group.WORLD)
    except SystemExit:
        raise  # it has left the report to another process
    except BaseException:
        if not _is_first_to_fail(store):
            sys.exit(1)  # what failed first is reported
        raise
    dist.destroy_process_group()  # not after a failure: that would wait for the others


def _is_first_to_fail(store: Any) -> bool:
    """Whether no other process has failed before; where that cannot be known, it is."""
    with suppress(RuntimeError):  # the launcher that has the store is gone
        failures: int = store.add(f"failures/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", 1)
        return failures == 1
    return True


def _watch(launcher: int) -> None:
    """Stop as at Ctrl-C when the launcher is gone, and end the process if that takes too long."""

    def wait() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK)
        _thread.interrupt_main(signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _send_failure(connection: Connection, error: BaseException) -> None:
    """Send an error, as text where it cannot be pickled, with its traceback as its cause."""
    lines = "".join(traceback.format_exception(error))
    with suppress(OSError):  # the launcher is gone
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - whatever its class raises
            error = RuntimeError(f"{type(error).__name__}: {words_of(error)}")
        send(connection, "failed", error, lines)
