"""The signals that ask a process to stop, and their handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C, what `kill` sends, and Ctrl-Break, which only Windows has.
STOP: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)


def name_of(number: int) -> str:
    """Return the name of a signal, or its number where this system does not know it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_as_ctrl_c_does() -> None:
    """Make every request to stop raise KeyboardInterrupt, for the rest of the process."""
    for one in STOP:
        signal.signal(one, signal.default_int_handler)


def leave_to_the_parent() -> None:
    """Ignore, here and in all processes that this one starts, what a batch system sends before a
    time limit: the parent asks for a stop in its own way."""
    for name in ("SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def ignore() -> None:
    """Ignore every request to stop: the process is about to end."""
    for one in STOP:
        signal.signal(one, signal.SIG_IGN)


@contextmanager
def on_stop(called: Callable[[], None], once: bool = False) -> Iterator[None]:
    """Call a function at every request to stop, or only at the first; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with kept() as restore:

        def handler(signum: int, frame: FrameType | None) -> None:
            if once:
                restore()
            called()

        for one in STOP:
            signal.signal(one, handler)
        yield


@contextmanager
def kept() -> Iterator[Callable[[], None]]:
    """Restore the handlers at the end of the block, or when the function that it yields is called.

    In other threads than the main one, which has no handlers to set, this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {one: signal.getsignal(one) for one in STOP} if main else {}

    def restore() -> None:
        for one, earlier in before.items():
            signal.signal(one, earlier)

    try:
        yield restore
    finally:
        restore()
