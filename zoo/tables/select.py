"""Which runs are on a leaderboard, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from zoo.errors import UserError, did_you_mean
from zoo.support.checked import choose
from zoo.support.text import printable
from zoo.tables.boards import Board, Result, Row

_WHAT: dict[str, Callable[[Result], tuple[str, ...]]] = {
    "dataset": lambda r: tuple(filter(None, (r["dataset"]["name"], r["dataset"].get("folder")))),
    "backbone": lambda r: (r["backbone"],),
    "loss": lambda r: (r["loss"] or "none",),
    "size": lambda r: (str(r["embedding_size"]),),
    "name": lambda r: (r["config"],),
}
_ORDERS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name,
    "loss": lambda row: row.loss,
    "backbone": lambda row: row.network[0],
    "size": lambda row: int(row.network[1]),
    "seeds": lambda row: len(row.results),
    "minutes": lambda row: row.minutes,
}


def matching(results: Iterable[Result], wanted: Mapping[str, Sequence[str]]) -> list[Result]:
    """Return the results that match one of the patterns of each filter.

    Args:
        results: what runs left.
        wanted: shell patterns, by what they are for: ``dataset`` (its name, or that of its folder),
            ``backbone``, ``loss``, ``size`` (of the embedding) and ``name`` (of the config). No
            patterns admit all.

    Raises:
        UserError: if none is left.
    """
    found = list(results)
    for what, patterns in wanted.items():
        choose("filter", what, _WHAT)
        if not patterns:
            continue
        names = {name for result in found for name in _WHAT[what](result)}
        found = [
            result
            for result in found
            if any(fnmatchcase(n, p) for n in _WHAT[what](result) for p in patterns)
        ]
        if not found:
            raise UserError(printable(_none(what, patterns, sorted(names))))
    return found


def sort(boards: Sequence[Board], order: str) -> list[Board]:
    """Return boards in another order: scores from the best down, all else from the least up.

    Args:
        boards: the boards.
        order: ``R@K``, ``name``, ``loss``, ``backbone``, ``size``, ``seeds`` or ``minutes``.

    Raises:
        UserError: if no board has such a column.
    """
    k = re.fullmatch(r"[Rr]@([1-9][0-9]{0,9})", order)
    ks = sorted({k for board in boards for k in board.ks})
    if k and int(k[1]) in ks:
        key: Callable[[Row], Any] = partial(_score, k=int(k[1]))
    elif order in _ORDERS:
        key = _ORDERS[order]
    else:
        known = [*(f"R@{k}" for k in ks), *_ORDERS]
        hint = did_you_mean(order, known) or f"; there are {', '.join(known)}"
        raise UserError(printable(f"--sort {order}: there is no such column{hint}"))
    return [replace(board, rows=tuple(sorted(board.rows, key=key))) for board in boards]


def _score(row: Row, k: int) -> tuple[bool, float]:
    """Return what sorts the best first, and last those without a score."""
    return (k not in row.recall, -row.recall[k].mean if k in row.recall else 0.0)


def _none(what: str, patterns: Sequence[str], names: Sequence[str]) -> str:
    said = " ".join(f"--{what} {pattern}" for pattern in patterns)
    near = did_you_mean(patterns[0], names) if len(patterns) == 1 else ""
    there = f"; there are {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
    return f"{said}: no run has that{near or there}"
