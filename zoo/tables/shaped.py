"""From results to a table in the shape of a published one: its rows, columns and order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zoo.comparing.spread import Spread
from zoo.tables import boards, conditions
from zoo.tables.boards import Result, Row
from zoo.tables.listed import best_of, is_best, remarks_on
from zoo.tables.shapes import TableShape
from zoo.tables.table import Entry, Group, Line, Table

_Key = tuple[str, ...]  # of a data set


@dataclass(frozen=True)
class Shaped:
    """A table, and the results that are not in it."""

    table: Table  # the table
    without_row: tuple[Result, ...]  # results on its data sets that fit no row
    elsewhere: tuple[Result, ...]  # results on other data sets


class _Column(NamedTuple):
    """The columns of a data set, and whether it is one of the paper's."""

    key: _Key
    group: Group
    own: bool


@dataclass
class _Slot:
    """A row of the shape, and its runs.

    Attributes:
        title: of the row.
        block: the number of its block.
        contest: whether its best numbers are bold.
        paper: what the paper reports, by data set and K.
        runs: by data set, each with whether its config names the row.
    """

    title: str
    block: int
    contest: bool
    paper: Mapping[str, dict[int, float]] = field(default_factory=dict)
    runs: dict[_Key, list[tuple[bool, Result]]] = field(default_factory=dict)

    def settle(self) -> list[Result]:
        """If a config names the row, drop other settings; return the dropped results."""
        left = []
        for key, runs in self.runs.items():
            named = {result["digest"] for by_name, result in runs if by_name}
            if named:
                self.runs[key] = [run for run in runs if run[1]["digest"] in named]
                left += [result for _, result in runs if result["digest"] not in named]
        return left

    def experiments(self, key: _Key) -> list[tuple[Result, ...]]:
        """Return its experiments on a data set, whatever the names of their configs."""
        return boards.experiments((result for _, result in self.runs.get(key, ())), by_name=False)


class _Draft(NamedTuple):
    """A line before its experiments are compared."""

    slot: _Slot
    title: str
    rows: list[Row | None]
    first: bool


def table(
    results: Sequence[Result],
    shape: TableShape,
    spread: Spread = "std",
    everywhere: bool = False,
    paper: bool = False,
    others: bool = False,
) -> Shaped:
    """Return results in the shape of a table.

    Args:
        results: of runs.
        shape: the shape.
        spread: the number after ±.
        everywhere: whether the columns are the data sets of the results, not those of the shape.
        paper: whether to show the paper's values on separate lines.
        others: whether to add a block with the experiments that fit no row, by loss.
    """
    columns = list(_columns(results, shape, everywhere))
    keys = [column.key for column in columns]
    there = [result for result in results if _key(result, shape) in keys]
    elsewhere = [result for result in results if _key(result, shape) not in keys]
    own = all(column.own for column in columns)
    slots, left = _slots(there, shape, columns)
    if others:
        slots, left = [*slots, *_by_loss(left, shape)], []
    drafts, shared = _drafts(slots, keys)
    lines = _lines(drafts, columns, shape, paper)
    rows = [row for line in lines for row in line.experiments]
    entries = [entry for line in lines for entry in line.entries]
    unlike = any(not entry.comparable for entry in entries)
    says = [f"paper: {shape.protocol.said}"] if paper and any(e.paper for e in entries) else []
    names = ", ".join(column.group.title for column in columns)
    made = Table(
        shape.caption if own else f"Recall@K in percent, {names}; the rows of {shape.paper}",
        shape.paper,
        shape.head if own or not shape.key else "",
        tuple(column.group for column in columns),
        tuple(lines),
        paper=paper,
        remarks=(
            *_networks(columns, lines, shape.varied),
            *shared,
            *remarks_on(rows, spread, unlike),
            *says,
        ),
        spread=spread,
        digits=shape.digits,
    )
    return Shaped(made, _unclaimed(left, shape), _unclaimed(elsewhere, shape))


def _unclaimed(results: Sequence[Result], shape: TableShape) -> tuple[Result, ...]:
    """Return the results whose configs name no other table of the paper."""
    tables = [(result.get("paper") or {}).get("table") for result in results]
    pairs = zip(results, tables, strict=True)
    return tuple(result for result, table in pairs if table in (None, shape.paper))


def _networks(
    columns: Sequence[_Column], lines: Sequence[Line], varied: Sequence[str]
) -> list[str]:
    """Return the network, or the network on each data set; rows that differ have a mark."""
    found: dict[str, str] = {}
    for i, column in enumerate(columns):
        for entry in (line.entries[i] for line in lines):
            if entry.experiment and entry.comparable and column.group.title not in found:
                backbone, size = entry.experiment.network
                facts = {"model.backbone": backbone, "model.embedding_size": f"{size}-d"}
                fixed = [facts[path] for path in facts if path not in varied]
                found[column.group.title] = ", ".join(fixed)
    if len(set(found.values())) == 1:
        return [f"Network: {next(iter(found.values()))}"]
    return [f"Network on {title}: {network}" for title, network in found.items()]


def _key(result: Result, shape: TableShape) -> _Key:
    """Return the data set of a result; the paper's data sets need no fingerprint."""
    name, fingerprint = boards.identity(result)
    own = any(columns.name == name for columns in shape.datasets)
    return (name,) if own else (name, fingerprint)


def _columns(results: Sequence[Result], shape: TableShape, everywhere: bool) -> Iterator[_Column]:
    """Yield the columns of the shape and, with ``everywhere``, of the other data sets."""
    there = dict.fromkeys(_key(result, shape) for result in results)
    for columns in shape.datasets:
        if not everywhere or (columns.name,) in there:
            headed = len(shape.datasets) > 1 or (everywhere and len(there) > 1)
            group = Group(columns.title, tuple(columns.ks), headed)
            yield _Column((columns.name,), group, True)
    if everywhere:
        for key, title in boards.titles(results).items():
            if key in there:
                found = [result for result in results if boards.identity(result) == key]
                ks = sorted({int(k) for result in found for k in result["recall"]})
                yield _Column(key, Group(title, tuple(ks)), False)


def _slots(
    results: Sequence[Result], shape: TableShape, columns: Sequence[_Column]
) -> tuple[list[_Slot], list[Result]]:
    """Return the rows with their runs, and the results that fit no row.

    If rows are values of a setting, the paper's rows apply to the paper's data sets only.
    """
    slots = _of_shape(shape) if not shape.key or any(column.own for column in columns) else {}
    more: dict[str, _Slot] = {}
    left = []
    for result in results:
        key = _key(result, shape)
        name, named = _row_of(result, shape)
        slot = slots.get(name or "")
        if slot is None and name and shape.key and len(key) > 1:
            slot = more.setdefault(name, _Slot(name, 0, shape.blocks[0].best))
        if slot is None:
            left.append(result)
        else:
            slot.runs.setdefault(key, []).append((named, result))
    left += [result for slot in slots.values() for result in slot.settle()]
    added = [more[name] for name in sorted(more, key=_natural)]
    return sorted([*slots.values(), *added], key=lambda slot: slot.block), left


def _of_shape(shape: TableShape) -> dict[str, _Slot]:
    """Return the rows of a shape, without runs, by their key."""
    slots = {}
    for number, block in enumerate(shape.blocks):
        for row in block.rows:
            paper = {name: _reported(shape, name, values) for name, values in row.recall.items()}
            slots[row.key] = _Slot(row.title, number, block.best, paper)
    return slots


def _reported(shape: TableShape, name: str, values: Sequence[float | None]) -> dict[int, float]:
    """Return the paper's values by K."""
    ks = next((columns.ks for columns in shape.datasets if columns.name == name), [])
    return {k: value for k, value in zip(ks, values, strict=False) if value is not None}


def _row_of(result: Result, shape: TableShape) -> tuple[str | None, bool]:
    """Return the row of a result, and whether its config names it.

    A run for another table of the paper belongs here if its settings are those of a row.
    """
    paper = result.get("paper") or {}
    if paper.get("table") == shape.paper and paper.get("dataset") == result["dataset"]["name"]:
        return paper.get("row"), True
    if paper.get("table") and not shape.key:
        return None, False
    return shape.row_of(result), False


def _by_loss(results: Sequence[Result], shape: TableShape) -> list[_Slot]:
    """Return rows for the results that fit no row of the shape."""
    slots: dict[str, _Slot] = {}
    for result in results:
        title = shape.row_of(result) if shape.key else None
        title = title or result["loss"] or "without training"
        slot = slots.setdefault(title, _Slot(title, len(shape.blocks), True))
        slot.runs.setdefault(_key(result, shape), []).append((False, result))
    return [slots[title] for title in sorted(slots, key=_natural)]


def _drafts(slots: Sequence[_Slot], keys: Sequence[_Key]) -> tuple[list[_Draft], list[str]]:
    """Return the lines: one for each row, or several if runs of a data set differ in settings."""
    drafts, shared = [], []
    for slot in slots:
        made = [boards.rows(slot.experiments(key)) for key in keys]
        if all(len(rows) <= 1 for rows, _ in made):
            alone = [rows[0] if rows else None for rows, _ in made]
            drafts.append(_Draft(slot, slot.title, alone, True))
            continue
        settings = [{" ".join(row.settings): row for row in rows} for rows, _ in made]
        labels = sorted({label for found in settings for label in found}, key=_natural)
        for label in labels:
            title = f"{slot.title}: {label}" if label else slot.title
            some = [found.get(label) for found in settings]
            drafts.append(_Draft(slot, title, some, label == labels[0]))
        shared += [
            f"{slot.title}, unless said otherwise: {' '.join(said)}" for _, said in made if said
        ]
    return drafts, list(dict.fromkeys(shared))


def _lines(
    drafts: Sequence[_Draft], columns: Sequence[_Column], shape: TableShape, paper: bool
) -> list[Line]:
    """Return the lines with their best numbers and notes."""
    entries = [_compared(drafts, i, column, shape, paper) for i, column in enumerate(columns)]
    return [
        Line(draft.title, tuple(of_line), draft.slot.block)
        for draft, *of_line in zip(drafts, *entries, strict=True)
    ]


def _compared(
    drafts: Sequence[_Draft], i: int, column: _Column, shape: TableShape, paper: bool
) -> list[Entry]:
    """Return the entries of a data set."""
    rows = {n: row for n, draft in enumerate(drafts) if (row := draft.rows[i])}
    unlike = _unlike(rows, drafts, shape)
    competing = [row for n, row in rows.items() if drafts[n].slot.contest and not unlike[n]]
    best = best_of(competing, column.group.ks, shape.digits)
    found = []
    for n, draft in enumerate(drafts):
        row = rows.get(n)
        reported = draft.slot.paper.get(column.key[0], {}) if draft.first and column.own else {}
        if row is None:
            found.append(Entry(paper=reported))
            continue
        other = shape.protocol.unlike(row.results[0]) if paper and reported else None
        notes = tuple(note for note in (row.note, unlike[n], other) if note)
        bold = is_best(row, best, shape.digits) if row in competing else frozenset()
        found.append(Entry(row, reported, bold, notes, comparable=not unlike[n]))
    return found


def _unlike(
    rows: Mapping[int, Row], drafts: Sequence[_Draft], shape: TableShape
) -> dict[int, str | None]:
    """Return why rows are not comparable with the others of their block; None if they are."""
    blocks: dict[int, list[int]] = {}
    for n in rows:
        blocks.setdefault(drafts[n].slot.block, []).append(n)
    found: dict[int, str | None] = {}
    for block, mine in blocks.items():
        usual = blocks.get(
            0 if block == len(shape.blocks) else block, ()
        )  # an added block, with block 0
        results = [rows[n].results[0] for n in mine]
        reference = [rows[n].results[0] for n in usual]
        found |= zip(mine, conditions.notes(results, reference, shape.varied), strict=True)
    return found


def _natural(text: str) -> list[Any]:
    """Return a key that sorts 8 before 16."""
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in re.split(r"(\d+)", text)]
