"""From a board to a table: a row for each experiment, with its settings, loss and network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zoo.comparing.spread import Spread
from zoo.evaluation import few_images
from zoo.evaluation.names import CLUSTERING
from zoo.runs.folder import RunFolder
from zoo.tables import conditions, shapes
from zoo.tables.boards import Board, Row
from zoo.tables.table import Entry, Group, Line, Table, shared_network

_SPREADS = {
    "std": "±: standard deviation over the seeds",
    "ci": "±: half of the 95 % interval of the mean over the seeds, by Student's t",
}
_SIGNIFICANCE = (
    "Significantly worse: p < 0.05, two-sided, corrected for the number of rows (Holm); "
    "`zoo compare` shows more"
)
_BEST = "Bold: the best of the rows that are comparable"


def table(board: Board, spread: Spread = "std", significance: bool = False) -> Table:
    """Return the table of a board; a network that all rows share is in the title.

    Args:
        board: the board.
        spread: the number after ±.
        significance: whether to mark the rows that are not significantly worse than the best; their
            results must hold the folder of their run.
    """
    alike = conditions.notes([row.results[0] for row in board.rows])
    best = best_of([row for row, note in zip(board.rows, alike, strict=True) if not note], board.ks)
    standings = _standings(board, alike) if significance else [None] * len(board.rows)
    protocols = shapes.protocols() if any(row.paper for row in board.rows) else {}
    lines = [
        Line(row.name, (_entry(row, note, standing, best, protocols),))
        for row, note, standing in zip(board.rows, alike, standings, strict=True)
    ]
    shared = [f"Unless said otherwise: {' '.join(board.shared)}"] if board.shared else []
    remarks = [*shared, *remarks_on(board.rows, spread, any(alike)), *_on_measures(board)]
    if significance and len(board.rows) > 1:
        remarks.append(_SIGNIFICANCE)
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
    """Return the best score by K as it is shown; none if there is only one to compare."""
    found = {k: [round(r.recall[k].mean, digits) for r in rows if k in r.recall] for k in ks}
    return {k: max(means) for k, means in found.items() if len(means) > 1}


def is_best(row: Row, best: dict[int, float], digits: int = 2) -> frozenset[int]:
    """Return the K at which a row has the best score."""
    scores = row.recall.items()
    return frozenset(k for k, s in scores if k in best and round(s.mean, digits) >= best[k])


def remarks_on(rows: Iterable[Row], spread: Spread, unlike: bool) -> list[str]:
    """Return the remarks on ± and bold numbers, if they are needed."""
    several = any(len(row.results) > 1 for row in rows)
    return [_SPREADS[spread]] * several + [_BEST] * unlike


def _standings(board: Board, alike: Sequence[str | None]) -> list[str | None]:
    """Return the note of each row that is not significantly worse than the best; else None.

    Args:
        board: the board.
        alike: why a row is not comparable with most; None if it is.
    """
    from zoo.comparing.standings import standings

    k = board.ks[0]
    places = [i for i, note in enumerate(alike) if not note]
    rows = [[RunFolder(r["folder"]) for r in board.rows[i].results] for i in places]
    said: list[str | None] = [None] * len(board.rows)
    for i, found in zip(places, standings(rows, k), strict=True):
        if found.place == "not worse":
            said[i] = f"not significantly worse than the best at R@{k}: {found.reason}"
        elif found.place == "unknown":
            said[i] = f"cannot be compared with the best: {found.reason}"
    return said


def _on_measures(board: Board) -> list[str]:
    """Return the warning about NMI and AMI, if there are any."""
    if not any(row.measures.keys() & set(CLUSTERING) for row in board.rows):
        return []
    data = board.rows[0].results[0]["dataset"]
    few = few_images.warning(data.get("images"), data.get("classes"))
    return [few] if few else []


def _entry(
    row: Row,
    unlike: str | None,
    standing: str | None,
    best: dict[int, float],
    protocols: dict[str, shapes.Protocol],
) -> Entry:
    paper = row.results[0].get("paper") or {}
    protocol = protocols.get(paper.get("table", "")) if row.paper else None
    other = protocol.unlike(row.results[0]) if protocol else None
    notes = tuple(note for note in (row.note, unlike, other, standing) if note)
    bold = frozenset() if unlike else is_best(row, best)
    return Entry(row, row.paper, bold, notes, comparable=not unlike)
