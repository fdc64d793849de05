"""Results -> experiments, and the experiments on one data set -> a board."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from zoo.comparing.spread import Score, average
from zoo.errors import UserError
from zoo.evaluation.names import MEASURES
from zoo.runs import choice
from zoo.runs.records import ResultRecord as Finished
from zoo.support.checked import checked, choose
from zoo.support.text import printable
from zoo.tables import differences
from zoo.tables.notebook import Shelf, Shown

if TYPE_CHECKING:
    from zoo.tables.table import Table

Result = dict[str, Any]

_APART = ("backbone", "embedding_size")


@dataclass(frozen=True)
class Row:
    """An experiment: the runs that differ in nothing but their seed.

    Attributes:
        results: the result of each run, by seed.
        recall: score by K.
        features: score by K of the pooled features below the embedding; empty if not measured.
        paper: what the paper reports, by K, in percent.
        settings: the settings in which it differs from the other rows, as on the command line.
    """

    results: tuple[Result, ...]
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
    def measures(self) -> dict[str, Score]:
        """Scores of the other measures by name, in the order of ``MEASURES``."""
        known = [result.get("measures", {}) for result in self.results]
        return {
            name: Score(tuple(100 * of_run[name] for of_run in known if name in of_run))
            for name in MEASURES
            if any(name in of_run for of_run in known)
        }

    @property
    def note(self) -> str | None:
        """How it was chosen on held-out classes; None if there were none."""
        return choice.note(self.results)


@dataclass(frozen=True, repr=False)
class Board(Shown):
    """The experiments on one data set, best first."""

    title: str  # the data set; with its fingerprint if another has the same title
    size: str  # the numbers of classes and images that were searched, if known
    ks: tuple[int, ...]  # every K that one of the rows has
    rows: tuple[Row, ...]  # sorted by the first K
    shared: tuple[str, ...] = ()  # the settings of every row that does not show another value

    def _as_tables(self) -> list[Table]:
        from zoo.tables import listed

        return [listed.table(self)]

    @property
    def heading(self) -> str:
        """The title, and how large the data set is."""
        return f"{self.title}: {self.size}" if self.size else self.title


@checked
def boards(results: Iterable[Result], apart: Sequence[str] = ()) -> Shelf[Board]:
    """Sort results into boards; data sets of the same name but other images are kept apart.

    Args:
        results: of runs.
        apart: what also gets separate boards: ``backbone``, ``embedding_size``.
    """
    for what in apart:
        choose("column", what, _APART)
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in (results := check_results(results)):
        key = (*identity(result), *(result[what] for what in apart))
        groups.setdefault(key, []).append(result)
    made: Shelf[Board] = Shelf()
    for data, title in titles(results).items():
        for key in sorted(key for key in groups if key[:2] == data):
            made.append(_board(title, groups[key]))
    return made


def check_results(results: Iterable[Result]) -> list[Result]:
    """Return results; raise a UserError if one of them is not the result of a run."""
    checked = list(results)
    for i, result in enumerate(checked):
        try:
            Finished.model_validate(result)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(
                printable(f"results[{i}] is not the result of a run: {where}: {first['msg']}")
            ) from error
    return checked


def identity(result: Result) -> tuple[str, str]:
    """Return what identifies a data set: its name and the fingerprint of its images."""
    data = result["dataset"]
    return data["name"], data.get("fingerprint", "")


def titles(results: Iterable[Result]) -> dict[tuple[str, str], str]:
    """Return the titles of data sets, sorted: name, and folder if one was given.

    If two have the same title, their fingerprints are added.
    """
    folders: dict[tuple[str, str], str] = {}
    for result in results:
        data = identity(result)
        folders[data] = folders.get(data) or result["dataset"].get("folder", "")
    called = {d: f"{folder} ({d[0]})" if folder else d[0] for d, folder in folders.items()}
    alike = Counter(called.values())
    return {
        data: f"{title} ({data[1]})" if alike[title] > 1 else title
        for data, title in sorted(called.items(), key=lambda one: (one[1], one[0]))
    }


def experiments(results: Iterable[Result], by_name: bool = True) -> list[tuple[Result, ...]]:
    """Return the runs of each experiment, by seed: they differ in nothing else.

    Args:
        results: of runs.
        by_name: whether the same settings under another name are another experiment.
    """
    groups: dict[tuple[str, ...], dict[int, Result]] = {}
    for result in results:
        selection = json.dumps(result.get("selection"), sort_keys=True)
        name = result["config"] if by_name else ""
        groups.setdefault((name, result["digest"], selection), {})[result["seed"]] = result
    return [tuple(runs[seed] for seed in sorted(runs)) for runs in groups.values()]


def rows(found: Sequence[tuple[Result, ...]]) -> tuple[list[Row], tuple[str, ...]]:
    """Return experiments as distinguishable rows, and the settings that most share."""
    known = [next((r["settings"] for r in runs if r.get("settings")), None) for runs in found]
    own, shared = differences.find(known)
    made = [_row(runs, settings) for runs, settings in zip(found, own, strict=True)]
    return _told_apart(made), tuple(shared)


def size_of(results: Iterable[Result]) -> str:
    """Return the size of a data set, if a result has it."""
    found: dict[str, Any] = {}
    for result in results:
        found |= result["dataset"]
    known = [f"{found[what]:,} {what}" for what in ("classes", "images") if found.get(what)]
    return ", ".join(known)


def _board(title: str, results: Sequence[Result]) -> Board:
    made, shared = rows(experiments(results))
    ks = tuple(sorted({k for row in made for k in row.recall}))
    made.sort(key=lambda row: (-row.recall[min(row.recall)].mean, row.name))
    return Board(title, size_of(results), ks, tuple(made), shared)


def _told_apart(found: Sequence[Row]) -> list[Row]:
    """Return rows of which no two look alike: if necessary, they show their digest."""
    looks = [(row.name, row.settings, row.loss, row.network, row.note) for row in found]
    alike = Counter(looks)
    return [
        replace(row, settings=(*row.settings, f"digest {row.results[0]['digest']}"))
        if alike[look] > 1
        else row
        for row, look in zip(found, looks, strict=True)
    ]


def _row(results: Sequence[Result], settings: Iterable[str]) -> Row:
    paper = (results[0].get("paper") or {}).get("recall", {})
    return Row(
        tuple(results),
        average([r["recall"] for r in results]),
        average([r["recall_of_features"] for r in results if "recall_of_features" in r]),
        {int(k): v for k, v in paper.items() if v is not None},
        tuple(settings),
    )
