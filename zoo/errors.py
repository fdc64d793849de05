"""The errors that users see, and the wording of their messages."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.support.near import near

if TYPE_CHECKING:
    import traceback


FAILURES = (Exception, SystemExit)
"""What a plugin's code may raise; ``sys.exit()`` in it must not end the command with success."""


class UserError(ValueError):
    """The user's input cannot be used; the message says what, where, and what to do.

    The command prints the message without a traceback and ends with status 2, or with 1 for a
    :class:`MachineError`. A file with several problems raises one error, with a line for each.
    """


class MachineError(UserError):
    """The machine cannot do it, though the input may be right: a full disk, a read-only folder."""


GPU_MEMORY = "the GPU's memory is full: use smaller batches, images or a smaller backbone"
CPU_MEMORY = (
    "the memory is full: use smaller batches, images or a smaller backbone, or fewer runs at a time"
)

_NO_GPU_MEMORY = re.compile(r"MPS backend out of memory|CUDA error: out of memory|_ALLOC_FAILED")
_NO_CPU_MEMORY = re.compile(r"DefaultCPUAllocator|not enough memory|bad_alloc|allocate memory")


def out_of_memory(error: BaseException) -> str | None:
    """Return a message that says what to lower if an error means full memory, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_torchs = isinstance(error, RuntimeError)
    if cuda is not None and isinstance(error, cuda.OutOfMemoryError):
        return GPU_MEMORY
    if is_torchs and _NO_GPU_MEMORY.search(words_of(error)):
        return GPU_MEMORY
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return CPU_MEMORY
    return CPU_MEMORY if is_torchs and _NO_CPU_MEMORY.search(words_of(error)) else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean x or y?"`` with the known names nearest to it, or ``""``."""
    return suggest(near(wrong, known))


def suggest(names: Iterable[str]) -> str:
    """Return ``"; did you mean x or y?"``, or ``""`` if there are no names."""
    names = list(names)
    return f"; did you mean {one_of(names)}?" if names else ""


def one_of(names: Sequence[str], word: str = "or") -> str:
    """Return "x", "x or y", or "x, y or z"."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def blame(what: str, error: BaseException) -> UserError:
    """Return the error that reports a component's failure: its message, and the failing call."""
    frame = frame_of(error)
    where = f" ({_place(frame)})" if frame else ""
    reason = " ".join(words_of(error).split())[:500]
    return UserError(
        f"{what} failed: {type(error).__name__}: {reason}{where}; ZOO_TRACEBACK=1 shows the calls"
    )


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Name the component in every error of the block; full memory is not blamed on it."""
    try:
        yield
    except UserError:
        raise
    except FAILURES as error:
        if out_of_memory(error):
            raise
        raise blame(what, error) from error


def words_of(error: BaseException) -> str:
    """Return the message of an error; "" if its class, a plugin's perhaps, fails to make one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its __str__ may be a plugin's
        return ""


def frame_of(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost call that raised an error, leaving out those in torch and zoo.checks."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    torch = getattr(sys.modules.get("torch"), "__path__", ())
    others = (*torch, str(Path(__file__).with_name("checks")))
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return next(reversed(own or frames), None)


def _place(frame: traceback.FrameSummary) -> str:
    """Return file and line number, with the code there unless it only raises the error."""
    line = "" if (frame.line or "raise").startswith("raise") else f": {frame.line}"
    return f"{frame.filename}:{frame.lineno}{line}"
