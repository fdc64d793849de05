"""Tables of Recall@K: the public entrance to :mod:`zoo.tables.leaderboard`."""

from __future__ import annotations

from zoo.tables.leaderboard import (
    FORMATS,
    Board,
    Row,
    Score,
    average,
    boards,
    load,
    render,
    tables,
    to_table,
)

__all__ = [
    "FORMATS",
    "Board",
    "Row",
    "Score",
    "average",
    "boards",
    "load",
    "render",
    "tables",
    "to_table",
]
