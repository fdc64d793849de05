"""A table in any format: rows of experiments, a group of columns for each data set.

Formats for machines are made from :class:`Table`, those for people from the :class:`Grid` that
:func:`layout` makes of it: its cells are text, and what a format does to them is markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zoo.comparing.spread import Score, Spread
from zoo.evaluation.names import MEASURES
from zoo.support.text import printable
from zoo.tables.boards import Row
from zoo.tables.notebook import Shown

MISSING = "–"
FACTS = ("settings", "loss", "backbone", "size", "seeds")


@dataclass(frozen=True)
class Group:
    """The columns of one data set."""

    title: str  # the data set
    ks: tuple[int, ...]  # the K of its columns
    headed: bool = True  # whether the title is above the columns


@dataclass(frozen=True)
class Entry:
    """The cells of a row on one data set.

    Attributes:
        experiment: the runs; None if there are none.
        paper: what the paper reports, by K, in percent.
        best: the K at which it is the best.
        notes: notes on it below the table.
        comparable: whether it is comparable with most of its column.
    """

    experiment: Row | None = None
    paper: dict[int, float] = field(default_factory=dict)
    best: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    comparable: bool = True


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    title: str  # of the row
    entries: tuple[Entry, ...]  # one for each group
    block: int = 0  # rows of different blocks have a rule between them

    @property
    def experiments(self) -> list[Row]:
        """The experiments in it."""
        return [entry.experiment for entry in self.entries if entry.experiment]


@dataclass(frozen=True, repr=False)
class Table(Shown):
    """A table."""

    title: str  # above the table
    shape: str  # "runs", or the published shape
    head: str  # above the titles of the rows
    groups: tuple[Group, ...]  # the columns
    lines: tuple[Line, ...]  # the rows
    facts: bool = False  # whether columns show settings, loss, network, seeds and minutes
    paper: bool = False  # whether the paper's values have separate lines
    remarks: tuple[str, ...] = ()  # below the table, about all of it
    spread: Spread = "std"  # the number after ±
    digits: int = 2  # decimals of a score

    def _as_tables(self) -> list[Table]:
        return [self]

    @property
    def notes(self) -> list[str]:
        """The notes on some rows, each once; their marks are numbers from 1."""
        entries = (entry for line in self.lines for entry in line.entries)
        return list(dict.fromkeys(note for entry in entries for note in entry.notes))

    def marks(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of an entry's notes."""
        notes = self.notes
        return tuple(sorted(notes.index(note) + 1 for note in entry.notes))


def shared_network(rows: Iterable[Row]) -> dict[str, str]:
    """Return what the networks of all rows have in common, in words, by column."""
    networks = [row.network for row in rows]
    backbones, sizes = ({network[i] for network in networks} for i in (0, 1))
    shared = {"backbone": next(iter(backbones))} if len(backbones) == 1 else {}
    return shared | ({"size": f"{next(iter(sizes))}-d"} if len(sizes) == 1 else {})


class Cell(NamedTuple):
    """A cell: its text, the marks after it, and whether it is the best of its column."""

    text: str
    marks: str = ""
    best: bool = False


class Head(NamedTuple):
    """The head of a column; ``group`` is the title above several columns, or empty."""

    text: str
    number: bool
    group: str = ""


@dataclass(frozen=True)
class GridLine:
    """A line of cells."""

    cells: tuple[Cell, ...]  # one for each head
    line: Line  # the row that it belongs to
    below: bool = False  # whether it continues the line above it
    rule: bool = False  # whether there is a rule above it


@dataclass(frozen=True)
class Grid:
    """A table as text."""

    title: str  # above the table
    heads: tuple[Head, ...]  # of the columns
    lines: tuple[GridLine, ...]  # of the rows
    notes: tuple[tuple[str, str], ...]  # below the table, each with its mark; remarks have none

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The titles above columns, each with its number of columns; empty if there are none."""
        found: list[tuple[str, int]] = []
        for head in self.heads:
            if found and found[-1][0] == head.group:
                found[-1] = (head.group, found[-1][1] + 1)
            else:
                found.append((head.group, 1))
        return found if any(title for title, _ in found) else []


def with_settings_below(table: Table) -> Table:
    """Return a table in which the settings of a row are a note below the table."""
    lines = []
    for line in table.lines:
        note = (f"settings: {' '.join(_settings(line))}",) if _settings(line) else ()
        entries = tuple(replace(e, notes=e.notes + note * bool(e.experiment)) for e in line.entries)
        lines.append(replace(line, entries=entries))
    return replace(table, lines=tuple(lines))


def layout(table: Table, stacked: bool = False, without: Collection[str] = ()) -> Grid:
    """Return a table as cells of text, without columns for a network that all rows share.

    Args:
        table: the table.
        stacked: whether settings are below the name instead of in a column.
        without: facts and measures that have no column.
    """
    shared = shared_network(row for line in table.lines for row in line.experiments)
    facts = [fact for fact in FACTS if table.facts and fact not in {*shared, *without}]
    if stacked or not any(_settings(line) for line in table.lines):
        facts = [fact for fact in facts if fact != "settings"]
    last = [name for name in (*_measured(table), *["minutes"] * table.facts) if name not in without]
    heads = [Head(table.head, False), *(Head(fact, fact in ("size", "seeds")) for fact in facts)]
    for group in table.groups:
        above = printable(group.title) if group.headed else ""
        heads += [Head(f"{'' if above else 'R@'}{k}", True, above) for k in group.ks]
    heads += [Head(MEASURES.get(name, name), True) for name in last]
    lines = tuple(_lines(table, facts, last, stacked))
    return Grid(printable(table.title), tuple(heads), lines, tuple(_below(table)))


def _lines(table: Table, facts: list[str], last: list[str], stacked: bool) -> Iterator[GridLine]:
    """Yield the line of each row, and those below it for features and paper."""
    block = table.lines[0].block if table.lines else 0
    for line in table.lines:
        settings = _settings(line) if stacked and table.facts else ()
        title = "\n  ".join(map(printable, [line.title, *settings]))
        everywhere = {table.marks(entry) for entry in line.entries if entry.experiment}
        alike = len(everywhere) == 1
        marks = _shown(*everywhere) if alike else ""
        first = [Cell(title, marks), *(Cell(_fact(line, fact)) for fact in facts)]
        scores = [
            cell
            for group, entry in zip(table.groups, line.entries, strict=True)
            for cell in _scores(table, group, entry, "" if alike else _shown(table.marks(entry)))
        ]
        measured = [Cell(_last(table, line, name)) for name in last]
        yield GridLine((*first, *scores, *measured), line, rule=line.block != block)
        block = line.block
        for name, cells in _added(table, line):
            blank = [Cell("")] * (len(first) - 1)
            cells = [Cell(name), *blank, *cells, *[Cell("")] * len(last)]
            yield GridLine(tuple(cells), line, below=True)


def _measured(table: Table) -> list[str]:
    """Return the measures beside Recall@K that a row has, if there are columns for them."""
    rows = [row for line in table.lines for row in line.experiments] if table.facts else []
    return [name for name in MEASURES if any(name in row.measures for row in rows)]


def _added(table: Table, line: Line) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the titles and numbers of the lines below a row."""
    groups = list(zip(table.groups, line.entries, strict=True))
    if table.facts and any(experiment.features for experiment in line.experiments):
        features = [
            (g, entry.experiment.features if entry.experiment else {}) for g, entry in groups
        ]
        cells = [_score(table, scores.get(k)) for group, scores in features for k in group.ks]
        yield "  pooled features", [Cell(cell) for cell in cells]
    if table.paper and any(entry.paper for entry in line.entries):
        yield (
            "  paper",
            [Cell(_against_paper(table, e, k)) for group, e in groups for k in group.ks],
        )


def _scores(table: Table, group: Group, entry: Entry, marks: str) -> Iterable[Cell]:
    recall = entry.experiment.recall if entry.experiment else {}
    for k in group.ks:
        yield Cell(_score(table, recall.get(k)), marks if k in recall else "", k in entry.best)


def _score(table: Table, score: Score | None) -> str:
    return score.show(table.spread, table.digits) if score else MISSING


def _against_paper(table: Table, entry: Entry, k: int) -> str:
    """Return the paper's value, and how far the row is above it."""
    if k not in entry.paper:
        return MISSING
    score = entry.experiment.recall.get(k) if entry.experiment else None
    if score is None:
        return f"{entry.paper[k]:.1f}"
    above = round(score.mean - entry.paper[k], table.digits) + 0.0  # which makes 0.0 of -0.0
    return f"{entry.paper[k]:.1f} ({above:+.{table.digits}f})"


def _last(table: Table, line: Line, name: str) -> str:
    """Return a measure of a row beside Recall@K, or the minutes of its training."""
    row = line.experiments[0]
    return f"{row.minutes:.1f}" if name == "minutes" else _score(table, row.measures.get(name))


def _settings(line: Line) -> tuple[str, ...]:
    return line.experiments[0].settings if line.experiments else ()


def _fact(line: Line, fact: str) -> str:
    row = line.experiments[0]
    backbone, size = row.network
    return printable(
        {
            "settings": " ".join(row.settings),
            "loss": row.loss,
            "backbone": backbone,
            "size": size,
            "seeds": str(len(row.results)),
        }[fact]
    )


def _below(table: Table) -> Iterator[tuple[str, str]]:
    """Yield the remarks, then the notes with their marks."""
    for remark in table.remarks:
        yield "", printable(remark)
    for number, note in enumerate(table.notes, start=1):
        yield str(number), printable(note)


def _shown(marks: tuple[int, ...]) -> str:
    return ",".join(map(str, marks))
