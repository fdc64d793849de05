"""Kill a function before each of its steps on the disk, to check what it leaves."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from itertools import count

STEPS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"})


def killed_at_every_step(folder, work):
    """For each step of ``work`` in a folder, run it, kill it before that step, and yield a number.

    A step is a call that opens, makes, renames or removes something. In the end, ``work`` runs once
    without being killed. The caller checks the folder after each number.
    """
    for step in count():
        child = os.fork()
        if not child:
            _work(os.fspath(folder), work, step)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            assert step > 2
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield step


def _work(folder, work, left):
    """Do the work in this process, with a SIGKILL after ``left`` steps."""

    def hook(event, arguments):
        nonlocal left
        if event in STEPS and isinstance(arguments[0], str) and arguments[0].startswith(folder):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    status = 1
    try:
        sys.addaudithook(hook)
        work()
        status = 0
    except Exception:  # noqa: BLE001 any failure is shown
        traceback.print_exc()
    finally:
        os._exit(status)
