"""Text that is safe to print; counts with their nouns."""

from __future__ import annotations

import unicodedata


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 class" or "3 classes"; without ``many``, an s is added."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """Return a text as one line that cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless(text: str) -> str:
    """Return a text, of several lines perhaps, that cannot control a terminal; spaces stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _is_space(c) else printable(c) for c in text)


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"
