"""The one exception that means: what the user gave cannot be used."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import traceback


class UserError(ValueError):
    """What the user gave cannot be used; the message says what, where, and what to do.

    The command prints the message without a traceback and ends with status 2. A file with several
    problems gives one error whose message has a line for each.
    """


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean x?"`` for the known name nearest to a wrong one, or ``""``."""
    known = list(known)
    near = difflib.get_close_matches(wrong.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if not near:
        return ""
    return "; did you mean " + next(k for k in known if k.lower() == near[0]) + "?"


def blame(what: str, error: Exception) -> UserError:
    """Return in one message that a component failed: what it said, and in which call."""
    frame = frame_of(error)
    where = f" ({_place(frame)})" if frame else ""
    reason = " ".join(str(error).split())[:500]
    return UserError(
        f"{what} failed: {type(error).__name__}: {reason}{where}; ZOO_TRACEBACK=1 shows the calls"
    )


def frame_of(error: Exception) -> traceback.FrameSummary | None:
    """Return the innermost call that raised an error, but for those of torch."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    torch = getattr(sys.modules.get("torch"), "__path__", ())
    own = [frame for frame in frames if not frame.filename.startswith(tuple(torch))]
    return next(reversed(own or frames), None)


def _place(frame: traceback.FrameSummary) -> str:
    """Return file and line, with what stands there unless it only raises the error."""
    line = "" if (frame.line or "raise").startswith("raise") else f": {frame.line}"
    return f"{frame.filename}:{frame.lineno}{line}"
