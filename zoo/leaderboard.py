"""Run folders -> tables of Recall@K, a table for each data set, a row for each experiment."""

from __future__ import annotations

import json
import statistics
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zoo import _choice, _differences, _narrow
from zoo._words import printable
from zoo.errors import UserError
from zoo.results import CONFIG, RESULT, RunFolder


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
        settings: what sets it apart from the other rows, as the command line has it.
    """

    results: tuple[dict[str, Any], ...]
    recall: dict[int, Score]
    features: dict[int, Score]
    paper: dict[int, float]
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the config."""
        return str(self.results[0]["config"])

    @property
    def loss(self) -> str:
        """The loss that it was trained with; a dash if it was not trained."""
        return self.results[0]["loss"] or "–"

    @property
    def network(self) -> tuple[str, str]:
        """The backbone, and the size of the embedding."""
        return str(self.results[0]["backbone"]), str(self.results[0]["embedding_size"])

    @property
    def minutes(self) -> float:
        """Mean minutes of training."""
        return statistics.fmean(r["seconds"]["training"] for r in self.results) / 60

    @property
    def note(self) -> str | None:
        """How it was chosen on classes that were held back; None if none were."""
        return _choice.note(self.results)


@dataclass(frozen=True)
class Board:
    """The experiments on one data set, best first.

    Attributes:
        title: the data set; with its fingerprint where another board would have the same title.
        size: how many classes and images were searched, as far as that is known.
        ks: every K that one of the rows has.
        rows: sorted by the first K.
        shared: settings of all rows that say nothing else, where they differ in some.
    """

    title: str
    size: str
    ks: tuple[int, ...]
    rows: tuple[Row, ...]
    shared: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What is said below of how rows were chosen, each once."""
        return list(dict.fromkeys(row.note for row in self.rows if row.note))

    def mark(self, row: Row) -> str:
        """Return what stands behind the name of a row that has a note: its number, raised."""
        number = str(self.notes.index(row.note) + 1) if row.note else ""
        return number.translate(_RAISED)


class _Line(NamedTuple):
    """A line of a board: its cells, the row that it belongs to, and whether it is the first."""

    cells: list[str]
    row: Row
    first: bool


_WHAT_TO_DO = "name a folder with runs, or make one: zoo run ice_glyphs"
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_TEXT = ("config", "settings", "loss", "backbone")  # the other columns hold numbers


def load(directory: str | Path) -> list[dict[str, Any]]:
    """Return the results of all finished runs under a directory.

    Raises:
        UserError: if there is no such directory or no finished run in it. Damaged results beside
            good ones are left out, with a warning.
    """
    root = Path(directory)
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "there is no such folder"
        raise UserError(f"{root}: {problem}; {_WHAT_TO_DO}")
    found, damaged = [], []
    for path in sorted(root.rglob(RESULT)):
        folder = RunFolder(path.parent)
        try:
            result = folder.result()
        except UserError as error:
            damaged.append(str(error))
            continue
        found.append(result if "settings" in result else {**result, "settings": folder.settings()})
    if not found:
        raise UserError("\n".join(damaged) or _nothing_in(root))
    for message in damaged:
        warnings.warn(message, stacklevel=2)
    return found


def boards(results: Iterable[dict[str, Any]]) -> list[Board]:
    """Sort results into boards; data sets of the same name but other images are kept apart."""
    by_data: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        data = result["dataset"]
        by_data.setdefault((data["name"], data.get("fingerprint", "")), []).append(result)
    titled = [(_title(of_data), mark, of_data) for (_, mark), of_data in by_data.items()]
    titles = Counter(title for title, _, _ in titled)
    return [
        _board(f"{title} ({mark})" if titles[title] > 1 else title, of_data)
        for title, mark, of_data in sorted(titled, key=lambda found: found[:2])
    ]


def to_table(board: Board, width: int | None = None, highlight: str | None = None) -> Group:
    """Return a board for the terminal; a network that all rows have is in its title.

    Args:
        board: the board.
        width: the characters that there is room for; by default as many as it takes.
        highlight: the name of a run, whose row stands out.
    """
    told = _shared_network(board)
    heads, lines, cells = _grid(board, told)
    if width is not None and _narrow.width_of(cells) > width:
        heads, lines, cells = _grid(board, told, stacked=True)
        cells = _narrow.fit(cells, [n for n, head in enumerate(heads) if head not in _TEXT], width)
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in _TEXT else "right", overflow="fold")
    for line, row in zip(lines, cells[1:], strict=True):
        found = any(result["run"] == highlight for result in line.row.results)
        style = "dim" if not line.first else "bold" if found else ""
        table.add_row(*map(_cell, row), style=style)
    network = ", ".join(told.values())
    title = "; ".join(filter(None, [f"Recall@K in percent, {_heading(board)}", network]))
    below = [Text(line, style="dim") for line in _below(board)]
    return Group(Text(title, style="bold"), table, *below)


def to_markdown(board: Board) -> str:
    """Return a board as a Markdown table under its heading."""
    heads = _heads(board)
    lines = [heads, ["---" if head in _TEXT else "---:" for head in heads]]
    lines += [[cell.strip() for cell in line.cells] for line in _lines(board)]
    text = "\n".join("| " + " | ".join(map(_escape, line)) + " |" for line in lines)
    below = "".join(f"\n{_escape(line)}\n" for line in _below(board))
    return f"### {_escape(_heading(board))}\n\n{text}\n{below}"


def _shared_network(board: Board) -> dict[str, str]:
    """Return what all rows have in common of their network, in words, by column."""
    backbones, sizes = ({row.network[i] for row in board.rows} for i in (0, 1))
    found = {"backbone": printable(*backbones)} if len(backbones) == 1 else {}
    return found | ({"size": f"{printable(*sizes)}-d"} if len(sizes) == 1 else {})


def _grid(
    board: Board, left_out: Collection[str], stacked: bool = False
) -> tuple[list[str], list[_Line], list[list[str]]]:
    """Return the heads, the lines, and the cells of both without some columns."""
    heads, lines = _heads(board, stacked), list(_lines(board, stacked))
    kept = [i for i, head in enumerate(heads) if head not in left_out]
    cells = [[row[i] for i in kept] for row in (heads, *(line.cells for line in lines))]
    return cells[0], lines, cells


def _cell(text: str) -> Text:
    """Return a cell; what is indented or a deviation is less than what is above it."""
    lines = [
        (line, "dim" if line.startswith(("  ", "±", "(")) else "") for line in text.split("\n")
    ]
    return Text("\n").join(Text(line, style) for line, style in lines)


def _heading(board: Board) -> str:
    return printable(f"{board.title}: {board.size}" if board.size else board.title)


def _below(board: Board) -> Iterator[str]:
    """Yield what is said below: settings that rows share, and how rows were chosen."""
    if board.shared:
        yield printable(f"Unless said otherwise: {' '.join(board.shared)}")
    for number, note in enumerate(board.notes, start=1):
        yield printable(f"{str(number).translate(_RAISED)} {note}")


def _heads(board: Board, stacked: bool = False) -> list[str]:
    differ = board.shared or any(row.settings for row in board.rows)
    settings = ["settings"] if differ and not stacked else []
    ks = [f"R@{k}" for k in board.ks]
    return ["config", *settings, "loss", "backbone", "size", "seeds", *ks, "minutes"]


def _lines(board: Board, stacked: bool = False) -> Iterator[_Line]:
    """Yield the line of each row, and those below it for features and paper.

    Args:
        board: the board.
        stacked: whether settings stand below the name, not in a column.
    """
    heads, ks = _heads(board, stacked), board.ks
    blank = [""] * (len(heads) - len(ks) - 2)
    for row in board.rows:
        settings = [printable(setting) for setting in row.settings]
        name = printable(row.name) + board.mark(row)
        name = "\n  ".join([name, *(settings if stacked else [])])
        column = [" ".join(settings)] if "settings" in heads else []
        rest = map(printable, (row.loss, *row.network, str(len(row.results))))
        cells = [name, *column, *rest, *_scores(row.recall, ks), f"{row.minutes:.1f}"]
        yield _Line(cells, row, True)
        if row.features:
            cells = ["  pooled features", *blank, *_scores(row.features, ks), ""]
            yield _Line(cells, row, False)
        if row.paper:
            yield _Line(["  paper", *blank, *_against_paper(row, ks), ""], row, False)


def _nothing_in(root: Path) -> str:
    """Return that no run is finished, and what there is instead."""
    begun = [path.parent.name for path in sorted(root.rglob(CONFIG))]
    if not begun:
        return f"{root}: no finished run in it; {_WHAT_TO_DO}"
    names = ", ".join(begun[:3]) + (", ..." if len(begun) > 3 else "")
    return printable(
        f"{root}: no finished run in it, but {len(begun)} that began: {names}; the command that "
        "began one goes on with it"
    )


def _title(results: Sequence[dict[str, Any]]) -> str:
    """Return what a data set is called: by its folder, if one was given."""
    data = [result["dataset"] for result in results]
    folder = next((d["folder"] for d in data if d.get("folder")), None)
    return f"{folder} ({data[0]['name']})" if folder else str(data[0]["name"])


def _size(results: Sequence[dict[str, Any]]) -> str:
    """Return how large a data set is, as far as a result says so."""
    found: dict[str, Any] = {}
    for result in results:
        found |= result["dataset"]
    known = [f"{found[what]:,} {what}" for what in ("classes", "images") if found.get(what)]
    return ", ".join(known)


def _board(title: str, results: Sequence[dict[str, Any]]) -> Board:
    groups: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for result in results:
        selection = json.dumps(result.get("selection"), sort_keys=True)
        group = (result["config"], result["digest"], selection)
        groups.setdefault(group, {})[result["seed"]] = result
    experiments = [[runs[seed] for seed in sorted(runs)] for runs in groups.values()]
    known = [next((r["settings"] for r in runs if r.get("settings")), None) for runs in experiments]
    own, shared = _differences.find(known)
    rows = [_row(runs, settings) for runs, settings in zip(experiments, own, strict=True)]
    rows = _told_apart(rows)
    ks = tuple(sorted({k for row in rows for k in row.recall}))
    rows.sort(key=lambda row: (-row.recall[min(row.recall)].mean, row.name))
    return Board(title, _size(results), ks, tuple(rows), tuple(shared))


def _told_apart(rows: Sequence[Row]) -> list[Row]:
    """Return rows of which no two look alike: if need be, they show their digest."""
    looks = [(row.name, row.settings, row.loss, row.network, row.note) for row in rows]
    alike = Counter(looks)
    return [
        replace(row, settings=(*row.settings, f"digest {row.results[0]['digest']}"))
        if alike[look] > 1
        else row
        for row, look in zip(rows, looks, strict=True)
    ]


def _row(results: Sequence[dict[str, Any]], settings: Iterable[str]) -> Row:
    paper = (results[0].get("paper") or {}).get("recall", {})
    return Row(
        tuple(results),
        average([r["recall"] for r in results]),
        average([r["recall_of_features"] for r in results if "recall_of_features" in r]),
        {int(k): v for k, v in paper.items() if v is not None},
        tuple(settings),
    )


def average(recalls: Sequence[dict[str, float]]) -> dict[int, Score]:
    """Return the score by K, of fractions by K of some seeds."""
    scores = {}
    for k in sorted({int(k) for recall in recalls for k in recall}):
        values = [100 * recall[str(k)] for recall in recalls if str(k) in recall]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        scores[k] = Score(statistics.fmean(values), deviation)
    return scores


def _scores(recall: dict[int, Score], ks: Sequence[int]) -> list[str]:
    return [str(recall[k]) if k in recall else "–" for k in ks]


def _against_paper(row: Row, ks: Sequence[int]) -> list[str]:
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
