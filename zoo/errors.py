"""The one exception that means: what the user gave cannot be used."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceback import FrameSummary


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
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    # A line of torch says nothing to the author of a loss; the one that led there does.
    own = [frame for frame in frames if not _is_torchs(frame.filename)] or frames
    where = f" ({_place(own[-1])})" if own else ""
    reason = " ".join(str(error).split())[:500]
    return UserError(
        f"{what} failed: {type(error).__name__}: {reason}{where}; ZOO_TRACEBACK=1 shows the calls"
    )


def _place(frame: FrameSummary) -> str:
    """Return file and line, with what stands there unless it only raises the error."""
    line = "" if (frame.line or "raise").startswith("raise") else f": {frame.line}"
    return f"{frame.filename}:{frame.lineno}{line}"


def _is_torchs(filename: str) -> bool:
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    return torch is not None and Path(filename).is_relative_to(Path(torch).parent)
