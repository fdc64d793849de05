"""Run folders -> tables of Recall@K, a table for each data set, a row for each experiment."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from zoo.errors import UserError
from zoo.results import RESULT, RunFolder


class Score(NamedTuple):
    """Mean and standard deviation over the seeds, in percent; no deviation for one seed."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Row:
    """An experiment: the runs that differ in nothing but their seed.

    Attributes:
        results: what each run left, by seed.
        recall: score by K.
        features: score by K of the pooled features below the embedding, where it was measured.
        paper: what the paper reports, by K, in percent.
    """

    results: tuple[dict[str, Any], ...]
    recall: dict[int, Score]
    features: dict[int, Score]
    paper: dict[int, float]

    @property
    def name(self) -> str:
        """The name of the config."""
        return str(self.results[0]["config"])

    @property
    def minutes(self) -> float:
        """Mean minutes of training."""
        return statistics.fmean(r["seconds"]["training"] for r in self.results) / 60

    def lines(self, ks: Sequence[int]) -> list[list[str]]:
        """Return the cells of the row, and of the lines below it for features and paper."""
        first = self.results[0]
        facts = [first["loss"] or "–", first["backbone"], str(first["embedding_size"])]
        head = [self.name, *facts, str(len(self.results))]
        found = [[*head, *_scores(self.recall, ks), f"{self.minutes:.1f}"]]
        blank = [""] * len(facts)
        if self.features:
            found.append(["  pooled features", *blank, "", *_scores(self.features, ks), ""])
        if self.paper:
            found.append(["  paper", *blank, "", *_differences(self, ks), ""])
        return found


@dataclass(frozen=True)
class Board:
    """The experiments on one data set, best first.

    Attributes:
        title: the data set, with its fingerprint where another one has the same name.
        ks: every K that one of the rows has.
        rows: sorted by the first K.
    """

    title: str
    ks: tuple[int, ...]
    rows: tuple[Row, ...]


_HEAD = ("config", "loss", "backbone", "size", "seeds")


def load(directory: str | Path) -> list[dict[str, Any]]:
    """Return the results of all finished runs under a directory.

    Raises:
        UserError: if there is no such directory or no finished run in it. Damaged results beside
            good ones are left out, with a warning.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; `zoo run` makes it, or name another one")
    found, damaged = [], []
    for path in sorted(root.rglob(RESULT)):
        try:
            found.append(RunFolder(path.parent).result())
        except UserError as error:
            damaged.append(str(error))
    if not found:
        raise UserError("\n".join(damaged) or f"{root}: no finished run in it; `zoo run` makes one")
    for message in damaged:
        warnings.warn(message, stacklevel=2)
    return found


def boards(results: Iterable[dict[str, Any]]) -> list[Board]:
    """Sort results into boards; data sets of the same name but other images are kept apart."""
    by_data: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        data = result["dataset"]
        by_data.setdefault((data["name"], data.get("fingerprint", "")), []).append(result)
    names = [name for name, _ in by_data]
    return [
        _board(f"{name} ({mark})" if names.count(name) > 1 else name, of_data)
        for (name, mark), of_data in sorted(by_data.items())
    ]


def to_table(board: Board, highlight: str | None = None) -> Table:
    """Return a board for the terminal; ``highlight`` is the name of a config."""
    title = Text(f"Recall@K, percent: {board.title}", style="italic")
    table = Table(title=title, title_justify="left")
    for i, head in enumerate([*_HEAD, *(f"R@{k}" for k in board.ks), "minutes"]):
        table.add_column(head, justify="left" if i < 3 else "right", no_wrap=i >= 3)
    for row in board.rows:
        first, *below = row.lines(board.ks)
        table.add_row(*map(Text, first), style="bold" if row.name == highlight else "")
        for line in below:
            table.add_row(*line, style="dim")
    return table


def to_markdown(board: Board) -> str:
    """Return a board as a Markdown table under its heading."""
    heads = [*_HEAD, *(f"R@{k}" for k in board.ks), "minutes"]
    lines = [heads, ["---"] * 3 + ["---:"] * (len(heads) - 3)]
    for row in board.rows:
        lines += row.lines(board.ks)
    text = "\n".join("| " + " | ".join(_escape(c.strip()) for c in line) + " |" for line in lines)
    return f"### {_escape(board.title)}\n\n{text}\n"


def _board(title: str, results: Sequence[dict[str, Any]]) -> Board:
    groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["config"], result["digest"]), {})[result["seed"]] = result
    rows = [_row([runs[seed] for seed in sorted(runs)]) for runs in groups.values()]
    ks = tuple(sorted({k for row in rows for k in row.recall}))
    rows.sort(key=lambda row: (-row.recall[min(row.recall)].mean, row.name))
    return Board(title, ks, tuple(rows))


def _row(results: Sequence[dict[str, Any]]) -> Row:
    paper = (results[0].get("paper") or {}).get("recall", {})
    return Row(
        tuple(results),
        _average([r["recall"] for r in results]),
        _average([r["recall_of_features"] for r in results if "recall_of_features" in r]),
        {int(k): v for k, v in paper.items() if v is not None},
    )


def _average(recalls: Sequence[dict[str, float]]) -> dict[int, Score]:
    scores = {}
    for k in sorted({int(k) for recall in recalls for k in recall}):
        values = [100 * recall[str(k)] for recall in recalls if str(k) in recall]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        scores[k] = Score(statistics.fmean(values), deviation)
    return scores


def _scores(recall: dict[int, Score], ks: Sequence[int]) -> list[str]:
    return [str(recall[k]) if k in recall else "–" for k in ks]


def _differences(row: Row, ks: Sequence[int]) -> list[str]:
    """Return the paper's values, each with how far the row is above it."""
    cells = []
    for k in ks:
        if k in row.paper and k in row.recall:
            cells.append(f"{row.paper[k]:.1f} ({row.recall[k].mean - row.paper[k]:+.2f})")
        else:
            cells.append(f"{row.paper[k]:.1f}" if k in row.paper else "–")
    return cells


def _escape(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return text.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")
