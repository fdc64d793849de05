"""How the command prints errors, warnings and lines of its result."""

from __future__ import annotations

import re

from zoo.progress import stderr, stdout

_TOO_LONG = re.compile(r"(\S{100})\S{4096,}(\S{100})")  # longer than any path


def complain(message: str, prefix: str = "error: ") -> None:
    """Print an error on stderr; a word longer than any path is shortened in its middle."""
    shown = _TOO_LONG.sub(r"\1...\2", prefix + message)
    stderr().print(shown, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line of the result on stdout."""
    stdout().print(text, markup=False, soft_wrap=True)
