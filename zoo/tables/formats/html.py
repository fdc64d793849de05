"""Tables as a page of HTML that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from zoo.tables.table import Cell, Grid, GridLine, Table, layout

_STYLE = """
:root { color-scheme: light dark; --line: #767676; --faint: #595959; --text: #1a1a1a; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --line: #8c8c8c; --faint: #b3b3b3; --text: #e8e8e8; --page: #161616 }
}
body {
  margin: 1.5rem; color: var(--text); background: var(--page); font: 1rem/1.4 system-ui, sans-serif
}
figure { margin: 0 0 2.5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem }
caption span { display: block; position: sticky; left: 0; max-width: calc(100vw - 3rem) }
th, td { padding: .2rem .7rem; text-align: left; font-weight: normal; vertical-align: baseline }
thead th { font-weight: 600; border-bottom: 1px solid var(--line) }
thead tr:first-child > * { border-top: 2px solid var(--line) }
th[scope=colgroup] { text-align: center }
tbody tr:first-child > * { border-top: 1px solid var(--line) }
tbody:last-child tr:last-child > * { border-bottom: 2px solid var(--line) }
.number { text-align: right; white-space: nowrap }
sup { line-height: 0 }
.number sup { position: absolute; line-height: 1; margin-top: -.3em }
[scope=row] { white-space: nowrap }
.below > * { color: var(--faint); padding-top: 0 }
.below th { padding-left: 1.7rem }
figcaption { color: var(--faint); max-width: 60rem; margin-top: .5rem }
figcaption p { margin: .2rem 0 }
"""
_FRAGMENT_STYLE = """
.zoo figure { margin: 0 0 1rem }
.zoo .wide { overflow-x: auto }
.zoo table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.zoo caption, .zoo th, .zoo td { text-align: left }
.zoo caption { font-weight: 600 }
.zoo .number { text-align: right; white-space: nowrap }
.zoo .below > *, .zoo figcaption { opacity: .75 }
.zoo figcaption p { margin: .2rem 0 }
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Leaderboard</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Leaderboard</h1>
{tables}</main>
</body>
</html>
"""


def render(tables: Iterable[Table]) -> str:
    """Return tables as a page."""
    return _PAGE.format(style=_STYLE, tables="".join(_figure(layout(table)) for table in tables))


def fragment(tables: Iterable[Table]) -> str:
    """Return tables as a part of somebody else's page, such as a notebook."""
    figures = "".join(_figure(layout(table)) for table in tables)
    return f'<div class="zoo"><style>{_FRAGMENT_STYLE}</style>\n{figures}</div>'


def _figure(grid: Grid) -> str:
    label = escape(grid.title)
    lines = [
        "<figure>",
        f'<div class="wide" role="region" tabindex="0" aria-label="{label}">',
        "<table>",
        f"<caption><span>{label}</span></caption>",
        *_columns(grid),
        "<thead>",
        *_heads(grid),
        "</thead>",
        "<tbody>",
        *(text for line in grid.lines for text in _line(grid, line)),
        "</tbody>",
        "</table>",
        "</div>",
        *_notes(grid),
        "</figure>",
    ]
    return "\n".join(lines) + "\n"


def _columns(grid: Grid) -> Iterator[str]:
    """Yield the groups of columns, to which heads with scope=colgroup refer."""
    for _, count in grid.spans:
        yield f'<colgroup span="{count}"></colgroup>'


def _heads(grid: Grid) -> Iterator[str]:
    if grid.spans:
        yield "<tr>"
        for title, count in grid.spans:
            scope = f' scope="colgroup" colspan="{count}"'
            yield f"<th{scope}>{escape(title)}</th>" if title else f'<td colspan="{count}"></td>'
        yield "</tr>"
    yield "<tr>"
    for head in grid.heads:
        number = ' class="number"' if head.number else ""
        yield f'<th scope="col"{number}>{escape(head.text)}</th>'
    yield "</tr>"


def _line(grid: Grid, line: GridLine) -> Iterator[str]:
    if line.rule:
        yield "</tbody>"
        yield "<tbody>"
    yield '<tr class="below">' if line.below else "<tr>"
    first, *others = line.cells
    yield f'<th scope="row">{_cell(first)}</th>'
    for head, cell in zip(grid.heads[1:], others, strict=True):
        number = ' class="number"' if head.number else ""
        yield f"<td{number}>{_cell(cell)}</td>"
    yield "</tr>"


def _cell(cell: Cell) -> str:
    marks = f"<sup>{cell.marks}</sup>" if cell.marks else ""
    return (f"<strong>{_text(cell)}</strong>" if cell.best else _text(cell)) + marks


def _text(cell: Cell) -> str:
    """Return the text, which may be broken within a path or a setting: they have no spaces."""
    return re.sub(r"(?<=[/=])", "<wbr>", escape(cell.text.strip()))


def _notes(grid: Grid) -> Iterator[str]:
    if grid.notes:
        yield "<figcaption>"
        for mark, note in grid.notes:
            yield f"<p>{f'<sup>{mark}</sup> ' if mark else ''}{escape(note)}</p>"
        yield "</figcaption>"
