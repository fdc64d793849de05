"""Which signals ask a process to stop, and who hears them."""

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


def end_as_ctrl_c_does() -> None:
    """Have every request to stop raise KeyboardInterrupt, for the rest of the process."""
    for one in STOP:
        signal.signal(one, signal.default_int_handler)


@contextmanager
def heard_by(called: Callable[[], None], once: bool = False) -> Iterator[None]:
    """Have a function called for every request to stop, or for the first one only.

    A thread that is not the main one hears none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in STOP}

    def put_back() -> None:
        for one, earlier in before.items():
            signal.signal(one, earlier)

    def handler(signum: int, frame: FrameType | None) -> None:
        if once:
            put_back()
        called()

    try:
        for one in STOP:
            signal.signal(one, handler)
        yield
    finally:
        put_back()
