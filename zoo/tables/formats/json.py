"""Tables as JSON, with the values of each seed; docs/tables.md describes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from zoo.comparing.spread import Score
from zoo.tables.table import Entry, Group, Table

VERSION = 1  # higher when a key goes away or changes its meaning


def render(tables: Iterable[Table]) -> str:
    """Return tables as one JSON document; every character is ASCII, others are escaped."""
    document = {"version": VERSION, "tables": [_table(table) for table in tables]}
    return json.dumps(document, indent=2) + "\n"


def measures(group: Group, entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield the values of an entry at each K; numbers are in percent."""
    for k in group.ks:
        score = entry.experiment.recall.get(k) if entry.experiment else None
        paper = entry.paper.get(k)
        if score is None and paper is None:
            continue
        difference = None if score is None or paper is None else score.mean - paper
        last = {"paper": paper, "difference": difference, "best": k in entry.best}
        yield {"measure": "recall", "k": k, **_numbers(score), **last}
    features = entry.experiment.features if entry.experiment else {}
    for k in group.ks:
        if k in features:
            last = {"paper": None, "difference": None, "best": False}
            yield {"measure": "recall_of_features", "k": k, **_numbers(features[k]), **last}
    for name, score in (entry.experiment.measures if entry.experiment else {}).items():
        last = {"paper": None, "difference": None, "best": False}
        yield {"measure": name, "k": None, **_numbers(score), **last}


def _numbers(score: Score | None) -> dict[str, Any]:
    if score is None:
        return {"mean": None, "std": None, "ci95": None, "values": []}
    return {
        "mean": score.mean,
        "std": score.deviation,
        "ci95": score.interval,
        "values": list(score.values),
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "shape": table.shape,
        "rows": [
            {
                "title": line.title,
                "block": line.block,
                "entries": [
                    _entry(table, group, entry)
                    for group, entry in zip(table.groups, line.entries, strict=True)
                ],
            }
            for line in table.lines
        ],
        "remarks": list(table.remarks),
        "notes": [{"mark": n, "text": note} for n, note in enumerate(table.notes, start=1)],
    }


def _entry(table: Table, group: Group, entry: Entry) -> dict[str, Any]:
    return {
        "dataset": group.title,
        "experiment": _experiment(entry),
        "comparable": entry.comparable,
        "marks": list(table.marks(entry)),
        "measures": list(measures(group, entry)),
    }


def _experiment(entry: Entry) -> dict[str, Any] | None:
    row = entry.experiment
    if row is None:
        return None
    first = row.results[0]
    return {
        "config": row.name,
        "digest": first["digest"],
        "settings": list(row.settings),
        "dataset": first["dataset"],
        "loss": first["loss"],
        "backbone": first["backbone"],
        "embedding_size": first["embedding_size"],
        "minutes": row.minutes,
        "runs": [{key: r.get(key) for key in ("run", "seed", "folder")} for r in row.results],
    }
