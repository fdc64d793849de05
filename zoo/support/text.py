"""Text that is safe to print; counts with their nouns."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 class" or "3 classes"; without ``many``, an s is added."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def that_fit(
    widths: Mapping[str, int], width: int, expendable: Iterable[Collection[str]]
) -> list[str]:
    """Return the columns of a table, without as many groups of columns as it takes to fit."""
    kept = list(widths)
    for group in expendable:
        if sum(widths[one] + 2 for one in kept) - 2 > width:
            kept = [one for one in kept if one not in group]
    return kept


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
