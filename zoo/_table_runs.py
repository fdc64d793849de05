"""A board -> a table: a row for each experiment, with its settings, loss and network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zoo import _conditions, _shape
from zoo._board import Board, Row
from zoo._scores import Spread
from zoo._table import Entry, Group, Line, Table, shared_network

_SPREADS = {
    "std": "±: standard deviation over the seeds",
    "ci": "±: half of the 95 % interval of the mean over the seeds, by Student's t",
}
_BEST = "Bold: the best of the rows that are comparable"


def table(board: Board, spread: Spread = "std") -> Table:
    """Return the table of a board; a network that all rows have is told in the title."""
    alike = _conditions.notes([row.results[0] for row in board.rows])
    best = best_of([row for row, note in zip(board.rows, alike, strict=True) if not note], board.ks)
    protocols = _shape.protocols() if any(row.paper for row in board.rows) else {}
    lines = [
        Line(row.name, (_entry(row, note, best, protocols),))
        for row, note in zip(board.rows, alike, strict=True)
    ]
    shared = [f"Unless said otherwise: {' '.join(board.shared)}"] if board.shared else []
    remarks = [*shared, *remarks_on(board.rows, spread, any(alike))]
    network = ", ".join(shared_network(board.rows).values())
    title = "; ".join(filter(None, [f"Recall@K in percent, {board.heading}", network]))
    return Table(
        title,
        "runs",
        "config",
        (Group(board.title, board.ks, headed=False),),
        tuple(lines),
        facts=True,
        paper=True,
        remarks=tuple(remarks),
        spread=spread,
    )


def best_of(rows: Iterable[Row], ks: Sequence[int], digits: int = 2) -> dict[int, float]:
    """Return the best score by K as it is shown; nothing where there is but one to compare."""
    found = {k: [round(r.recall[k].mean, digits) for r in rows if k in r.recall] for k in ks}
    return {k: max(means) for k, means in found.items() if len(means) > 1}


def is_best(row: Row, best: dict[int, float], digits: int = 2) -> frozenset[int]:
    """Return the K at which a row has the best score."""
    scores = row.recall.items()
    return frozenset(k for k, s in scores if k in best and round(s.mean, digits) >= best[k])


def remarks_on(rows: Iterable[Row], spread: Spread, unlike: bool) -> list[str]:
    """Return what ± and bold numbers mean, where that is not plain."""
    several = any(len(row.results) > 1 for row in rows)
    return [_SPREADS[spread]] * several + [_BEST] * unlike


def _entry(
    row: Row, unlike: str | None, best: dict[int, float], protocols: dict[str, _shape.Protocol]
) -> Entry:
    paper = row.results[0].get("paper") or {}
    protocol = protocols.get(paper.get("table", "")) if row.paper else None
    other = protocol.unlike(row.results[0]) if protocol else None
    notes = tuple(note for note in (row.note, unlike, other) if note)
    bold = frozenset() if unlike else is_best(row, best)
    return Entry(row, row.paper, bold, notes, comparable=not unlike)
