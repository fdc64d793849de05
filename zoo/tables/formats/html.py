"""Tables as HTML without external files: a page, or a part of another page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from zoo.support import templates
from zoo.tables.table import FACTS, Grid, Table, layout

_FOLDER = Path(__file__).parent / "templates"


def render(tables: Iterable[Table]) -> str:
    """Return tables as a page."""
    return _rendered(tables, page=True)


def fragment(tables: Iterable[Table]) -> str:
    """Return tables as a part of another page, such as a notebook."""
    return _rendered(tables, page=False)


def _rendered(tables: Iterable[Table], page: bool) -> str:
    template = templates.environment(_FOLDER).get_template("tables.html.j2")
    return template.render(grids=[_grid(table) for table in tables], page=page)


def _grid(table: Table) -> Grid:
    """Return the cells of a table, numbers first and settings last: a phone shows few columns."""
    grid = layout(table)
    later = [*FACTS[1:], FACTS[0]]
    texts = [head.text for head in grid.heads]
    ranks = [later.index(text) if i and text in later else -1 for i, text in enumerate(texts)]
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    lines = [replace(line, cells=tuple(line.cells[i] for i in order)) for line in grid.lines]
    return replace(grid, heads=tuple(grid.heads[i] for i in order), lines=tuple(lines))
