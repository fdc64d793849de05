"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.tables.formats.terminal import RAISED
from zoo.tables.table import Cell, Head, Table, layout


def render(tables: Iterable[Table]) -> str:
    """Return tables, each below its heading."""
    return "\n".join(map(to_markdown, tables))


def to_markdown(table: Table) -> str:
    """Return a table below its heading."""
    grid = layout(table)
    lines = [
        [_head(head) for head in grid.heads],
        ["---:" if head.number else "---" for head in grid.heads],
        *([_cell(cell) for cell in line.cells] for line in grid.lines),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = [f"{mark.translate(RAISED)} {note}".strip() for mark, note in grid.notes]
    below = "".join(f"\n{escape(note)}\n" for note in notes)
    return f"### {escape(grid.title)}\n\n{text}\n{below}"


def escape(text: str) -> str:
    """Return any text as Markdown that shows the same text."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for character in "|_*`[]~":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


def _head(head: Head) -> str:
    """Return a head with its data set, since Markdown has no titles above several columns."""
    return escape(f"{head.group} R@{head.text}" if head.group else head.text)


def _cell(cell: Cell) -> str:
    text = escape(cell.text.strip())
    return (f"**{text}**" if cell.best else text) + cell.marks.translate(RAISED)
