"""A leaderboard as cells of a page, each with the value that it is sorted by."""

from __future__ import annotations

from typing import Any, NamedTuple

from zoo.comparing.spread import Score
from zoo.tables import conditions
from zoo.tables.boards import Board, Row


class PageCell(NamedTuple):
    """A cell of a table: its text, the value it is sorted by, and whether it is the best."""

    text: str
    value: float | None = None
    best: bool = False


class PageRow(NamedTuple):
    """An experiment with its seeds.

    Attributes:
        row: the row of the leaderboard.
        notes: the numbers of its notes below the table.
        seeds: seed and page of each run.
        recall: a cell for each K.
        features: the same for the pooled features before the embedding layer, if measured.
        paper: the numbers of the paper, with the difference of the row; empty if there are none.
    """

    row: Row
    notes: list[int]
    seeds: list[tuple[int, str]]
    recall: list[PageCell]
    features: list[PageCell]
    paper: list[PageCell]


class BoardTable(NamedTuple):
    """A leaderboard as a page shows it."""

    board: Board
    notes: list[str]
    lines: list[PageRow]


def table(board: Board) -> BoardTable:
    """Return the cells of a leaderboard; only rows under the most common conditions can be best."""
    unlike = conditions.notes([row.results[0] for row in board.rows])
    alike = [row for row, why in zip(board.rows, unlike, strict=True) if not why]
    best = {
        k: max((row.recall[k].mean for row in alike if k in row.recall), default=None)
        for k in board.ks
    }
    whys = [
        [note for note in (why, row.note) if note]
        for row, why in zip(board.rows, unlike, strict=True)
    ]
    notes = list(dict.fromkeys(note for own in whys for note in own))
    lines = [
        _line(row, board.ks, best if row in alike else {}, [notes.index(note) + 1 for note in own])
        for row, own in zip(board.rows, whys, strict=True)
    ]
    return BoardTable(board, notes, lines)


def runs_of(row: Row) -> list[tuple[int, str]]:
    """Return seed and page of each run of an experiment."""
    return [(result["seed"], result["page"]) for result in row.results]


def _line(
    row: Row, ks: tuple[int, ...], best: dict[int, float | None], notes: list[int]
) -> PageRow:
    return PageRow(
        row,
        notes,
        runs_of(row),
        [_score(row.recall.get(k), best.get(k)) for k in ks],
        [_score(row.features.get(k)) for k in ks] if row.features else [],
        [_paper(row, k) for k in ks] if row.paper else [],
    )


def _score(score: Score | None, best: float | None = None) -> PageCell:
    if score is None:
        return PageCell("–")
    return PageCell(
        str(score), score.mean, best is not None and f"{score.mean:.2f}" == f"{best:.2f}"
    )


def _paper(row: Row, k: int) -> PageCell:
    paper: Any = row.paper.get(k)
    if paper is None:
        return PageCell("–")
    if k not in row.recall:
        return PageCell(f"{paper:.1f}")
    return PageCell(f"{paper:.1f} ({row.recall[k].mean - paper:+.2f})")
