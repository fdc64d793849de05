"""Breaks the cells of a table into lines, so that it fits a terminal and names stay readable."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_GAP = 2  # spaces between columns
_LONG = 24  # characters of a word, beyond which it may be broken anywhere
# A word ends after a space, an underscore, a dot; a setting such as loss.scale=16 is one word.
_WORD = re.compile(r"\S*=\S*\s?|[^\s_.]+[\s_.]?|[\s_.]")


def width_of(rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in characters."""
    widths = _widths(rows)
    return sum(widths) + _GAP * (len(widths) - 1)


def fit(rows: Sequence[Sequence[str]], numbers: Collection[int], width: int) -> list[list[str]]:
    """Return the rows of a table with enough line breaks to fit.

    A number breaks before its deviation. The columns of text share the remaining width: the widest
    shrinks first, and none gets narrower than its longest word.

    Args:
        rows: the cells, the row of heads among them.
        numbers: which columns hold numbers; the others hold text.
        width: in characters.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    for i in numbers:
        columns[i] = [cell.replace(" ", "\n", 1) for cell in columns[i]]
    widths = _widths([*zip(*columns, strict=True)])
    least = {i: _longest_word(c) for i, c in enumerate(columns) if i not in numbers}
    too_much = sum(widths) + _GAP * (len(widths) - 1) - width
    for _ in range(too_much):
        able = [i for i in least if widths[i] > least[i]]
        if able:
            widths[max(able, key=lambda i: widths[i])] -= 1
    for i in least:
        columns[i] = [fold(cell, widths[i]) for cell in columns[i]]
    return [list(row) for row in zip(*columns, strict=True)]


def fold(text: str, width: int) -> str:
    """Break lines at the ends of words; the new line keeps the indent."""
    found = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        found.append(indent)
        for word in _WORD.findall(line.strip()):
            if len(found[-1] + word.rstrip()) > width and found[-1].strip():
                found.append(indent)
            found[-1] += word
    return "\n".join(line.rstrip() for line in found)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the longest line of each column."""
    return [max(map(len, "\n".join(column).split("\n"))) for column in zip(*rows, strict=True)]


def _longest_word(cells: Sequence[str]) -> int:
    longest = max(len(line) for cell in cells for line in fold(cell, 1).split("\n"))
    return min(longest, _LONG)
