"""What the tables of components share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.markup import escape, render
from rich.table import Table

from zoo import registry
from zoo.support.text import harmless


def width(cells: Sequence[str]) -> int:
    """Return the width of a column and the gap after it; 0 if it is empty."""
    widest = max(cell_len(harmless(render(cell).plain)) for cell in cells)
    return widest + 2 if widest else 0


def origin(component: registry.Component) -> str:
    """Return the package that a component is from, unless its name shows it."""
    known = ("metric-zoo", "pytorch-metric-learning")
    return "" if component.distribution in known else escape(component.distribution)


def broken(component: registry.Component) -> str:
    """Return why a component cannot be used."""
    return f"[red]broken: {escape(component.broken or '')}[/]"


def table_of(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without its empty columns; a column of single words is not wrapped."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        whole = not any(" " in row[i] for row in rows)
        table.add_column(heads[i], overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table
