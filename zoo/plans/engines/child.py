"""The process of one run on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from zoo.plans.engines.base import Handle, Send, Task
from zoo.plans.process import END, NO_TEST, STOP

PROGRAM = "from zoo.plans.process import main; main()"


class Child(Handle):
    """The process of one run.

    Args:
        task: the run.
        send: receives its events.
        threads: CPU threads that it may use; None: no limit.
        environment: variables that select its devices.
    """

    def __init__(
        self,
        task: Task,
        send: Send,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._asked = 0
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        variables = {**os.environ, **task.environment, **(environment or {})}
        if threads:
            variables["OMP_NUM_THREADS"] = str(threads)
        # The child finds the same modules as the command. It gets its own session, since Ctrl-C
        # reaches a whole session and only the command is to ask the child to stop.
        code = f"import sys; sys.path[:] = {list(task.path)!r}; {PROGRAM}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, task.name, *([] if task.test else [NO_TEST])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=variables,
            cwd=task.cwd,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # same, on Windows
        )
        self._reader = threading.Thread(target=self._read, args=(send,), daemon=True)
        self._reader.start()
        self._write(f"{task.config}{END}\n".encode())

    def poll(self) -> int | None:
        """Return its exit status, None while it runs; a thread sends its events."""
        return self._process.poll()

    def stop(self, times: int) -> None:
        """Ask it through its stdin: on Windows, a signal would end it at once."""
        while self._asked < min(times, 3):
            self._asked += 1
            self._process.kill() if self._asked == 3 else self._write(STOP)

    def close(self) -> str:
        """Wait until all of its events are read; return what it wrote to stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._reader.join(timeout=1)
        if not self._reader.is_alive():  # a process that it started may hold the pipe
            self._process.stdout.close()
        with self._log:
            self._log.seek(0)
            return self._log.read().decode(errors="replace")

    def abandon(self) -> None:
        """Kill it."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended already; poll will show that
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self, send: Send) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # an incomplete line
                send(json.loads(line))
