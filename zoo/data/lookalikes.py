"""Names of classes that look the same: they differ in case, or in the encoding of an accent."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zoo.base import Finding, Split


class Spellings(NamedTuple):
    """Two or more names that one class seems to have, each with its split."""

    names: list[tuple[Split, str]]

    def __str__(self) -> str:
        shown = ascii if self.is_one_text() else repr  # repr would look the same
        listed = " and ".join(f"{shown(name)} in {split}" for split, name in self.names)
        return f"one class under several names? {listed}; if so, put its images into one folder"

    def is_one_text(self) -> bool:
        """Whether some names are equivalent in Unicode: é may be one character or two."""
        return len({unicodedata.normalize("NFC", name) for _, name in self.names}) < len(self.names)

    def across(self) -> bool:
        """Whether they are in both splits."""
        return len({split for split, _ in self.names}) > 1

    def finding(self) -> Finding:
        """Return an error if equivalent names are in both splits, else a warning."""
        wrong = self.across() and self.is_one_text()
        return Finding("error" if wrong else "warning", str(self), self.names[0][1])


def spelt_alike(names: Mapping[Split, Iterable[str]]) -> list[Spellings]:
    """Return the classes, in all splits, that seem to have several different names."""
    found: dict[str, list[tuple[Split, str]]] = {}
    for split, classes in names.items():
        for name in classes:
            found.setdefault(_folded(name), []).append((split, name))
    return [Spellings(alike) for alike in found.values() if len({n for _, n in alike}) > 1]


def _folded(name: str) -> str:
    """Return the common form of all spellings of a name."""
    plain = unicodedata.normalize("NFC", name).casefold()
    return " ".join(unicodedata.normalize("NFC", plain).split())
