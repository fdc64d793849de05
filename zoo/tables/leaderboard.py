"""Run folders -> tables of Recall@K.

A board has the experiments on one data set, a row for each. :func:`tables` makes tables of boards,
or of results in the shape of a published table; :func:`render` writes them in any format.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group

from zoo.comparing.spread import Score, Spread, average
from zoo.errors import UserError
from zoo.progress import Terminal
from zoo.runs.folder import CONFIG, RESULT, RunFolder
from zoo.support.checked import Count, checked, choose
from zoo.support.text import counted, printable
from zoo.tables import listed, select, shaped, shapes
from zoo.tables.boards import Board, Row, boards, check_results
from zoo.tables.formats import terminal
from zoo.tables.notebook import Shelf
from zoo.tables.table import Table

__all__ = [
    "FORMATS",
    "Board",
    "Row",
    "Score",
    "average",
    "boards",
    "load",
    "render",
    "tables",
    "to_table",
]

FORMATS = {"text": ".txt", "markdown": ".md", "csv": ".csv", "json": ".json", "latex": ".tex"}
FORMATS |= {"html": ".html"}
"""The formats, and how files of them end."""

_WHAT_TO_DO = "name a folder with runs, or make one: zoo run ice_glyphs"
_WIDTH = 160  # characters of a text that is not for a terminal
_NAMED = 5  # names that a message tells


@checked
def load(*directories: str | Path) -> list[dict[str, Any]]:
    """Return the results of all finished runs under some directories.

    Each tells under ``folder`` where it is from: the folder of its run.

    Raises:
        UserError: if there is no such directory or no finished run in it. Damaged results beside
            good ones are left out, with a warning.
    """
    return [result for directory in directories for result in _load(Path(directory))]


@checked
def tables(
    results: Sequence[dict[str, Any]],
    shape: str = "runs",
    *,
    wanted: Mapping[str, Sequence[str]] | None = None,
    spread: Spread = "std",
    sort: str | None = None,
    apart: Sequence[str] = (),
    paper: bool = False,
    others: bool = False,
    significance: bool = False,
) -> Shelf[Table]:
    """Return results as tables; what is left out of a published shape is told in a warning.

    Args:
        results: what runs left, see :func:`load`.
        shape: "runs": a table for each data set, a row for each experiment; or the name or the file
            of a published table's shape.
        wanted: shell patterns for ``dataset``, ``backbone``, ``loss``, ``size`` and ``name``; only
            results that match one of each are in the tables.
        spread: what stands behind ±: "std", the standard deviation over the seeds, or "ci", half of
            the 95 % interval of the mean.
        sort: the column that sorts the rows of runs; by default Recall at the first K.
        apart: what else has tables of its own: ``backbone``, ``size``.
        paper: whether a published shape has lines with the paper's values.
        others: whether a published shape gets rows for what it has none for.
        significance: whether rows of runs are marked that are not significantly worse than the
            best; see :mod:`zoo.comparing.standings`.

    Raises:
        UserError: if nothing is left to show, or an argument does not fit.
    """
    wanted = wanted or {}
    results = select.matching(check_results(results), wanted)
    if shape == "runs":
        found = boards(results, ["embedding_size" if one == "size" else one for one in apart])
        if sort is not None:
            found = Shelf(select.sort(found, sort))
        return Shelf(listed.table(board, spread, significance) for board in found)
    loaded = shapes.load(shape)
    everywhere = bool(wanted.get("dataset"))
    made = shaped.table(results, loaded, spread, everywhere, paper, others)
    _tell(made, loaded.paper)
    return Shelf([made.table])


@checked
def render(made: Sequence[Table], kind: str, standalone: bool = False) -> str:
    """Return tables as text in one of :data:`FORMATS`.

    Args:
        made: the tables.
        kind: the format.
        standalone: for latex: whether it is a document of its own.

    Raises:
        UserError: if there is no such format, or it has no documents of their own.
    """
    choose("format", kind, FORMATS)
    if standalone and kind != "latex":
        raise UserError(f"only latex can be a document of its own; leave out standalone for {kind}")
    if kind == "text":
        console = Terminal(width=_WIDTH, color_system=None)
        with console.capture() as captured:
            for table in made:
                console.print(terminal.render(table, _WIDTH), "")
        return captured.get()
    module: Any = importlib.import_module(f"zoo.tables.formats.{kind}")
    return str(module.render_standalone(made) if standalone else module.render(made))


@checked
def to_table(board: Board, width: Count | None = None, highlight: str | None = None) -> Group:
    """Return a board for the terminal; a network that all rows have is in its title.

    Args:
        board: the board.
        width: the characters that there is room for; by default as many as it takes.
        highlight: the name of a run, whose row stands out.
    """
    return terminal.render(listed.table(board), width, highlight)


def _load(root: Path) -> list[dict[str, Any]]:
    if not os.path.isdir(root):  # noqa: PTH112 a path's own raises for a name too long
        there = os.path.exists(root)  # noqa: PTH110
        problem = "is not a folder" if there else "there is no such folder"
        raise UserError(printable(f"{root}: {problem}; {_WHAT_TO_DO}"))
    found, damaged = [], []
    for path in sorted(root.rglob(RESULT)):
        folder = RunFolder(path.parent)
        try:
            result = folder.result()
        except UserError as error:
            damaged.append(str(error))
            continue
        settings = result["settings"] if "settings" in result else folder.settings()
        found.append({**result, "settings": settings, "folder": str(folder.path)})
    if not found:
        raise UserError("\n".join(damaged) or _nothing_in(root))
    for message in damaged:
        warnings.warn(message, stacklevel=3)
    for name, count in Counter(result["run"] for result in found).items():
        if count > 1:
            warnings.warn(printable(f"{name} is there {count} times; one is shown"), stacklevel=3)
    return found


def _tell(made: shaped.Shaped, paper: str) -> None:
    """Warn of what is left out of a table; refuse one with nothing in it."""
    said = []
    if made.without_row:
        runs = counted(len(made.without_row), "run")
        names = _named(result["config"] for result in made.without_row)
        said.append(f"{paper} has no row for {runs} ({names}); --others adds rows")
    if made.elsewhere:
        runs = counted(len(made.elsewhere), "run")
        data = _named(result["dataset"]["name"] for result in made.elsewhere)
        one = made.elsewhere[0]["dataset"]["name"]
        said.append(f"{paper} has no columns for {runs} ({data}); --dataset {one} makes some")
    entries = [entry for line in made.table.lines for entry in line.entries]
    if not any(entry.experiment or (made.table.paper and entry.paper) for entry in entries):
        raise UserError(printable("; ".join(said) or f"no run is for {paper}"))
    for message in said:
        warnings.warn(printable(message), stacklevel=3)


def _named(names: Any) -> str:
    known = sorted(set(names))
    return ", ".join(known[:_NAMED]) + (", ..." if len(known) > _NAMED else "")


def _nothing_in(root: Path) -> str:
    """Return that no run is finished, and what there is instead."""
    begun = [path.parent.name for path in sorted(root.rglob(CONFIG))]
    if not begun:
        return printable(f"{root}: no finished run in it; {_WHAT_TO_DO}")
    names = ", ".join(begun[:3]) + (", ..." if len(begun) > 3 else "")
    return printable(
        f"{root}: no finished run in it, but {len(begun)} that began: {names}; the command that "
        "began one goes on with it"
    )
