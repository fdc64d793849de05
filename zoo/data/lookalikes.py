"""Names of classes that a person takes for one: another case, an accent written otherwise."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zoo.base import Finding, Split


class Spellings(NamedTuple):
    """The names that one class seems to have.

    Attributes:
        names: each with the split it is in; two or more.
    """

    names: list[tuple[Split, str]]

    def __str__(self) -> str:
        shown = ascii if self.is_one_text() else repr  # which would look the same otherwise
        listed = " and ".join(f"{shown(name)} in {split}" for split, name in self.names)
        return f"one class under several names? {listed}; if so, put its images into one folder"

    def is_one_text(self) -> bool:
        """Whether Unicode calls some of the names the same: é is one character or two."""
        return len({unicodedata.normalize("NFC", name) for _, name in self.names}) < len(self.names)

    def across(self) -> bool:
        """Whether they are in both splits."""
        return len({split for split, _ in self.names}) > 1

    def finding(self) -> Finding:
        """Return an error where one text is in both splits, else a warning."""
        wrong = self.across() and self.is_one_text()
        return Finding("error" if wrong else "warning", str(self), self.names[0][1])


def spelt_alike(names: Mapping[Split, Iterable[str]]) -> list[Spellings]:
    """Return the classes, of all splits together, that seem to have several names.

    Names that are the very same are none of them.
    """
    found: dict[str, list[tuple[Split, str]]] = {}
    for split, classes in names.items():
        for name in classes:
            found.setdefault(_folded(name), []).append((split, name))
    return [Spellings(alike) for alike in found.values() if len({n for _, n in alike}) > 1]


def _folded(name: str) -> str:
    """Return what the spellings of a name have in common."""
    plain = unicodedata.normalize("NFC", name).casefold()
    return " ".join(unicodedata.normalize("NFC", plain).split())
