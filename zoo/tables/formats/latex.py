"""A table in LaTeX, with the rules of booktabs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from zoo.tables.formats.escape import escape
from zoo.tables.table import Cell, Grid, GridLine, Table, layout

PACKAGES = "% In the preamble: \\usepackage{booktabs}\n"
_LONG = 30  # characters of a cell that may be broken into lines
_LONG_TITLE = 50  # the same for the first column, whose names are better kept whole
_WIDE = 70  # characters of a line; wider tables are set smaller
_BROKEN = r"p{0.3\linewidth}"
_DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs}
\begin{document}
"""


def render(tables: Iterable[Table]) -> str:
    """Return tables for a document that uses the package booktabs."""
    return "\n".join([PACKAGES, *_tables(tables)])


def render_standalone(tables: Iterable[Table]) -> str:
    """Return tables as a complete document."""
    return _DOCUMENT + "\\clearpage\n".join(_tables(tables)) + "\\end{document}\n"


def _tables(tables: Iterable[Table]) -> Iterator[str]:
    labels: list[str] = []
    for table in tables:
        label = _label(table)
        labels.append(label)
        count = labels.count(label)
        yield _table(layout(table), label if count == 1 else f"{label}-{count}")


def _table(grid: Grid, label: str) -> str:
    wide = max(sum(len(c.text) + 2 for c in line.cells) for line in grid.lines) > _WIDE
    lines = [
        r"\begin{table}",
        r"  \centering",
        r"  \setlength{\belowcaptionskip}{6pt}",
        rf"  \caption{{{escape(grid.title)}}}",
        rf"  \label{{{label}}}",
        *([r"  \footnotesize", r"  \setlength{\tabcolsep}{4pt}"] if wide else []),
        rf"  \begin{{tabular}}{{{_columns(grid)}}}",
        r"    \toprule",
        *(f"    {line}" for line in _heads(grid)),
        r"    \midrule",
        *(f"    {text}" for line in grid.lines for text in _line(grid, line)),
        r"    \bottomrule",
        r"  \end{tabular}",
        *_notes(grid),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _label(table: Table) -> str:
    """Return the label for \\ref: the data sets in ASCII letters, digits and hyphens."""
    words = [table.shape, *(group.title for group in table.groups)]
    plain = unicodedata.normalize("NFKD", "-".join(words)).lower()
    return "tab:" + re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def _columns(grid: Grid) -> str:
    """Return the alignment of columns; long texts are broken into lines."""
    kinds = ("r" if head.number else "l" for head in grid.heads)
    broken = _broken(grid)
    return "".join(_BROKEN if i in broken else kind for i, kind in enumerate(kinds))


def _broken(grid: Grid) -> list[int]:
    """Return which columns are too wide for one line."""
    longest = [max(len(line.cells[i].text) for line in grid.lines) for i in range(len(grid.heads))]
    texts = [i for i, head in enumerate(grid.heads) if not head.number]
    return [i for i in texts if longest[i] > (_LONG if i else _LONG_TITLE)]


def _heads(grid: Grid) -> Iterator[str]:
    """Yield the lines of heads; titles above several columns have a rule below them."""
    if grid.spans:
        cells, rules, at = [], [], 1
        for title, count in grid.spans:
            if title:
                cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(title)}}}")
                rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            else:
                cells += [""] * count
            at += count
        yield " & ".join(cells) + r" \\"
        yield " ".join(rules)
    yield " & ".join(escape(head.text) for head in grid.heads) + r" \\"


def _line(grid: Grid, line: GridLine) -> Iterator[str]:
    if line.rule:
        yield r"\midrule"
    broken = _broken(grid)
    cells = [_cell(cell, head.number) for head, cell in zip(grid.heads, line.cells, strict=True)]
    yield " & ".join(_breakable(c) if i in broken else c for i, c in enumerate(cells)) + r" \\"


def _breakable(text: str) -> str:
    """Return a cell that may be broken inside a path or a setting, which have no spaces."""
    return r"\raggedright " + re.sub(r"(?<=[/=])", r"\\allowbreak{}", text) if text else ""


def _cell(cell: Cell, number: bool) -> str:
    text = cell.text.replace("-", "\N{MINUS SIGN}") if number else cell.text
    text = (r"\quad " if text.startswith("  ") else "") + escape(text.strip())
    marks = rf"\textsuperscript{{{cell.marks}}}" if cell.marks else ""
    hanging = rf"\rlap{{{marks}}}" if number and marks else marks  # keeps the digits aligned
    return (rf"\textbf{{{text}}}" if cell.best else text) + hanging


def _notes(grid: Grid) -> list[str]:
    if not grid.notes:
        return []
    notes = [
        (rf"\textsuperscript{{{mark}}} " if mark else "") + escape(note)
        for mark, note in grid.notes
    ]
    return [
        r"  \par\medskip",
        r"  \begin{minipage}{\linewidth}",
        r"    \footnotesize\raggedright",
        *(f"    {note}\\par" for note in notes),
        r"  \end{minipage}",
    ]
