"""Tables as CSV: a line for each row, data set and K, with all digits of the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from zoo.support.text import printable
from zoo.tables.formats.json import measures
from zoo.tables.table import Table

COLUMNS = (
    *("table", "row", "dataset", "config", "settings", "loss", "backbone", "embedding_size"),
    *("minutes", "measure", "k", "mean", "std", "ci95", "seeds", "paper", "difference", "best"),
    *("comparable", "notes"),
)
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
)  # a spreadsheet takes a text for a formula if it begins so


def render(tables: Iterable[Table]) -> str:
    """Return tables as one CSV; missing values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        writer.writerows([_safe(value) for value in line] for line in rows(table))
    return out.getvalue()


def rows(table: Table) -> Iterator[Sequence[Any]]:
    """Yield the values of a table, in the order of ``COLUMNS``."""
    for line in table.lines:
        for group, entry in zip(table.groups, line.entries, strict=True):
            row = entry.experiment
            about: list[Any] = [None] * 6
            if row:
                settings = " ".join(row.settings)
                about = [row.name, settings, row.results[0]["loss"], *row.network, row.minutes]
            for found in measures(group, entry):
                numbers = [found[name] for name in ("measure", "k", "mean", "std", "ci95")]
                rest = [found[name] for name in ("paper", "difference", "best")]
                yield [
                    *(table.title, line.title, group.title, *about),
                    *(*numbers, len(found["values"]), *rest),
                    *(entry.comparable, "; ".join(entry.notes)),
                ]


def _safe(value: Any) -> Any:
    """Return a value that is neither a formula for a spreadsheet nor a command for a terminal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
