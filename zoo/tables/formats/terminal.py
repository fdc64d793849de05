"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from zoo.evaluation.names import MEASURES
from zoo.tables.formats import narrow
from zoo.tables.table import Cell, Grid, GridLine, Table, layout, with_settings_below

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_GAP = 2  # spaces between columns


def render(
    table: Table, width: int | None = None, highlight: str | None = None, settings: bool = False
) -> Group:
    """Return a table for the terminal, with one line for each row if that is possible.

    Args:
        table: the table.
        width: in characters; by default as wide as necessary. In a narrower terminal, data sets
            are placed below each other, settings become notes, and columns are left out.
        highlight: the name of a run whose row is coloured.
        settings: show all columns and settings, on as many lines a row as it takes. Where columns
            would be cut, each row is a block of lines; a word may be longer than the line, so print
            it with ``crop=False``.
    """
    grid = layout(table)
    cells = _texts(grid)
    if width is not None and narrow.width_of(cells) > width:
        if len(table.groups) > 1:
            parts = [_part(table, i) for i in range(len(table.groups))]
            made = [render(part, width, highlight, settings) for part in parts]
            return Group(*(line for part in made for line in (part, Text())))
        grid = layout(table, stacked=True) if settings else _narrowed(table, width)
        cells = _texts(grid)
        if narrow.width_of(cells) > width:
            numbers = [i for i, head in enumerate(grid.heads) if head.number]
            cells = narrow.fit(cells, numbers, width)
        if settings and narrow.width_of(cells) > width:
            return _blocks(layout(table), width, highlight)
    shown = RichTable(box=None, pad_edge=False)
    for head, text in zip(grid.heads, cells[0], strict=True):
        shown.add_column(text, justify="right" if head.number else "left", overflow="fold")
    for line, texts in zip(grid.lines, cells[1:], strict=True):
        if line.rule:
            shown.add_row()
        shown.add_row(*_cells(line, texts), style=_style(line, highlight))
    above = [_spans(grid, cells)] if grid.spans else []
    whole = width if settings else None
    below = [_whole(_note(mark, note), whole, "dim") for mark, note in grid.notes]
    return Group(_whole(grid.title, whole, "bold"), *above, shown, *below)


def _style(line: GridLine, highlight: str | None) -> str:
    found = any(r["run"] == highlight for e in line.line.experiments for r in e.results)
    return "dim" if line.below else "cyan" if found else ""


def _blocks(grid: Grid, width: int, highlight: str | None) -> Group:
    """Return a table as lines "name: value", with an empty line before each row."""
    shown = [_whole(grid.title, width, "bold")]
    for line in grid.lines:
        above = line.cells[0].text.strip() if line.below else ""
        if not line.below:
            shown.append(Text())
        for head, cell in list(zip(grid.heads, line.cells, strict=True))[line.below :]:
            name = " ".join(filter(None, (above, head.group, head.text)))
            style = "bold" if cell.best else _style(line, highlight)
            if cell.text:
                text = f"{name}: {cell.text}" if name else cell.text
                shown.append(_whole(text + cell.marks.translate(RAISED), width, style))
    below = [_whole(_note(mark, note), width, "dim") for mark, note in grid.notes]
    return Group(*shown, Text(), *below)


def _whole(text: str, width: int | None, style: str) -> Text:
    """Return a text whose lines end at spaces, so that a word longer than the width stays whole."""
    if width is None:
        return Text(text, style)
    lines = wrap(
        text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines), style, no_wrap=True, overflow="ignore")


def _narrowed(table: Table, width: int) -> Grid:
    """Return a table with settings as notes and without the columns that do not fit."""
    heads = [head.text for head in layout(table, without=["settings"]).heads]
    grid = layout(table, stacked=True)
    for some, without in _with_less(with_settings_below(table)):
        grid = layout(some, without=without)
        shown = [head.text for head in grid.heads]
        if left_out := [name for name in heads if name not in shown]:
            note = f"Not shown at a width of {width}: {', '.join(left_out)}"
            grid = replace(grid, notes=(*grid.notes, ("", note)))
        if narrow.width_of(_texts(grid)) <= width:
            break
    return grid


def _with_less(table: Table) -> Iterator[tuple[Table, list[str]]]:
    """Yield a table with fewer and fewer columns, each with the names of columns to leave out."""
    without = ["settings"]
    yield table, without
    for name in ("minutes", "loss", "backbone", "size", *MEASURES, "seeds"):
        without = [*without, name]
        yield table, without
    (group,) = table.groups
    for count in range(len(group.ks) - 1, 0, -1):
        yield replace(table, groups=(replace(group, ks=group.ks[:count]),)), without


def _part(table: Table, i: int) -> Table:
    """Return the part of a table on one data set."""
    lines = tuple(replace(line, entries=line.entries[i : i + 1]) for line in table.lines)
    title = f"{table.groups[i].title}. {table.title}"
    return replace(table, title=title, groups=table.groups[i : i + 1], lines=lines)


def _texts(grid: Grid) -> list[list[str]]:
    """Return the heads and all lines as text, the digits of a column aligned."""
    hang = [
        max(len(line.cells[i].marks) for line in grid.lines) if head.number else 0
        for i, head in enumerate(grid.heads)
    ]
    heads = [head.text + " " * room for head, room in zip(grid.heads, hang, strict=True)]
    return [heads, *(list(map(_marked, line.cells, hang)) for line in grid.lines)]


def _marked(cell: Cell, room: int) -> str:
    """Return the text of a cell, with its marks after the first line."""
    first, *others = cell.text.split("\n")
    marks = cell.marks.translate(RAISED).ljust(room)
    return "\n".join([first + marks, *others])


def _cells(line: GridLine, texts: Sequence[str]) -> list[Text]:
    """Return the cells; indented text and deviations are dim."""
    found = []
    for cell, text in zip(line.cells, texts, strict=True):
        parts = [
            Text(part, "dim" if part.startswith(("  ", "±", "(")) else "bold" if cell.best else "")
            for part in text.split("\n")
        ]
        found.append(Text("\n").join(parts))
    return found


def _spans(grid: Grid, cells: Sequence[Sequence[str]]) -> Text:
    """Return the titles above several columns, centred."""
    columns = zip(*cells, strict=True)
    widths = [max(map(len, "\n".join(column).split("\n"))) for column in columns]
    found, at = [], 0
    for title, count in grid.spans:
        width = sum(widths[at : at + count]) + _GAP * (count - 1)
        found.append(title.center(width) if len(title) < width else title[:width])
        at += count
    return Text((" " * _GAP).join(found).rstrip(), "bold")


def _note(mark: str, note: str) -> str:
    return f"{mark.translate(RAISED)} {note}" if mark else note
