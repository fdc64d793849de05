"""Choose settings on held-out classes; only the chosen ones are measured on the test classes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zoo.comparing.spread import Score, average
from zoo.config.schema import Config
from zoo.plans.jobs import Job
from zoo.runs import choice as runs_choice
from zoo.runs.folder import CONFIG

Record = dict[str, Any]


class PlannedRun(NamedTuple):
    """A run that may compete: its number in the plan, its config, and its settings in words."""

    number: int
    config: Config
    settings: dict[str, str]


@dataclass(frozen=True)
class Contest:
    """Runs of one config whose settings compete on held-out classes.

    Attributes:
        runs: the runs.
        space: if the settings were searched, the values of each key in words.
        tried: how many settings were tried in the search, including those without a result.
    """

    runs: tuple[PlannedRun, ...]
    space: Mapping[str, str] = field(default_factory=dict)
    tried: int = 0

    @property
    def config(self) -> Config:
        """One of the configs; all hold out the same classes and measure the same K on them."""
        return self.runs[0].config

    @property
    def share(self) -> str:
        """The share of the training classes that is held out, in words."""
        return runs_choice.of_training_classes(self.config.evaluate.validation or 0)

    def __str__(self) -> str:
        count = len({run.config.digest() for run in self.runs})
        return (
            f"{self.config.name}: {count} settings compete on {self.share}; only the best "
            "is measured on the test classes"
        )


class Entrant(NamedTuple):
    """Settings that compete.

    Attributes:
        settings: in words, without the seed.
        jobs: one run per seed.
        records: the validation record of each run; None if it has not ended.
    """

    settings: dict[str, str]
    jobs: tuple[Job, ...]
    records: tuple[Record | None, ...]

    @property
    def scores(self) -> dict[int, Score]:
        """Recall@K of the held-out classes by K, over the seeds that have ended."""
        return average([record["validation"]["recall"] for record in self.records if record])

    @property
    def tested(self) -> dict[int, Score]:
        """Recall@K of the test classes by K, over the seeds that were chosen and measured."""
        done = [job.folder for job in self.jobs if job.test and job.state == "finished"]
        return average([folder.result()["recall"] for folder in done])


@dataclass(frozen=True)
class Choice:
    """The outcome of a contest.

    Attributes:
        contest: the contest.
        entrants: the settings, in the order of the plan.
        chosen: one of them; None if it cannot be chosen yet.
        selection: what the records of the chosen runs keep of the choice.
        reason: why none is chosen.
    """

    contest: Contest
    entrants: tuple[Entrant, ...]
    chosen: Entrant | None = None
    selection: Record | None = None
    reason: str = ""


def contests(runs: Iterable[PlannedRun]) -> list[Contest]:
    """Return which runs of one config compete: those on the same data, if their settings differ."""
    by_data: dict[str, list[PlannedRun]] = {}
    once: dict[int, PlannedRun] = {}
    for run in runs:  # a run that was asked for twice counts once
        once.setdefault(run.number, run)
    for run in once.values():
        held_out = run.config.evaluate.validation
        if held_out is not None:
            data = run.config.dataset.model_dump()
            key = json.dumps([data, held_out, run.config.evaluate.ks[0]], sort_keys=True)
            by_data.setdefault(key, []).append(run)
    return [
        Contest(tuple(found))
        for found in by_data.values()
        if len({run.config.digest() for run in found}) > 1
    ]


def choose(contest: Contest, jobs: Sequence[Job], records: Sequence[Record | None]) -> Choice:
    """Choose the settings with the highest mean Recall at the first K; of equals the first.

    Settings with a diverged run are left out. While any other run is missing, nothing is chosen: if
    it turned out to be the best, the test classes would be measured a second time.

    Args:
        contest: the contest.
        jobs: all jobs of the plan.
        records: the record of each job; None if it has not ended.
    """
    entrants = tuple(_entrants(contest, jobs, records))
    missing = [
        job
        for entrant in entrants
        for job, record in zip(entrant.jobs, entrant.records, strict=True)
        if record is None and not job.diverged
    ]
    if missing:
        count = f"{len(missing)} of {len(contest.runs)} runs"
        return Choice(contest, entrants, reason=f"{count} have not ended")
    seeds = {job.config.seed for entrant in entrants for job in entrant.jobs}
    whole = [
        entrant
        for entrant in entrants
        if all(entrant.records) and {job.config.seed for job in entrant.jobs} == seeds
    ]
    if not whole:
        return Choice(contest, entrants, reason="no settings finished with every seed")
    best = max(whole, key=_first_score)
    return Choice(contest, entrants, best, _selection(contest, best, whole))


def table(choice: Choice) -> Group:
    """Return all settings with their validation recall, and the test recall of the chosen ones."""
    first = min(choice.contest.config.evaluate.ks)
    tested = choice.chosen.tested if choice.chosen else {}
    made = Table(box=None, pad_edge=False)
    made.add_column("settings", overflow="fold")
    for head in ("seeds", "iteration", f"validation R@{first}", *(f"R@{k}" for k in tested)):
        made.add_column(head, justify="right", no_wrap=True)
    for entrant in choice.entrants:
        chosen = entrant is choice.chosen
        scores = entrant.scores
        ended = [record for record in entrant.records if record]
        made.add_row(
            Text(_in_words(entrant.settings)),
            str(len(ended)),
            ", ".join(str(record["iteration"]) for record in ended),
            str(scores[first]) if scores else _state(entrant),
            *(str(score) if chosen else "–" for score in tested.values()),
            style="bold" if chosen else "",
        )
    title = Text(f"{choice.contest.config.name}: the choice on {choice.contest.share}")
    return Group(title, made, *map(Text, _below(choice)))


def _entrants(
    contest: Contest, jobs: Sequence[Job], records: Sequence[Record | None]
) -> Iterable[Entrant]:
    by_digest: dict[str, list[PlannedRun]] = {}
    for run in contest.runs:
        by_digest.setdefault(run.config.digest(), []).append(run)
    for runs in by_digest.values():
        settings = {key: text for key, text in runs[0].settings.items() if key != "seed"}
        found = [(jobs[run.number], records[run.number]) for run in runs]
        yield Entrant(settings, tuple(job for job, _ in found), tuple(one for _, one in found))


def _first_score(entrant: Entrant) -> float:
    return entrant.scores[min(entrant.scores)].mean


def _selection(contest: Contest, best: Entrant, entrants: Sequence[Entrant]) -> Record:
    """Return the chosen settings and the values that competed, in words."""
    if contest.space:
        return {
            "settings": best.settings,
            "among": {key: [text] for key, text in contest.space.items()},
            "candidates": contest.tried,
            "seeds": [job.config.seed for job in best.jobs],
        }
    keys = dict.fromkeys(key for entrant in entrants for key in entrant.settings)
    values = {
        key: list(dict.fromkeys(entrant.settings.get(key, "none") for entrant in entrants))
        for key in keys
    }
    return {
        "settings": best.settings,
        "among": {key: found for key, found in values.items() if len(found) > 1},
        "candidates": len(entrants),
        "seeds": [job.config.seed for job in best.jobs],
    }


def _below(choice: Choice) -> list[str]:
    """Return the lines below the table: what was left out, what was chosen, and what is next."""
    lines = [
        f"left out: {_in_words(entrant.settings)}: {job.reason}"
        for entrant in choice.entrants
        for job in entrant.jobs
        if job.diverged
    ]
    if choice.chosen is None or choice.selection is None:
        return [*lines, f"nothing is chosen: {choice.reason}"]
    seeds = len(choice.chosen.jobs)
    k = min(choice.contest.config.evaluate.ks)
    by = f"validation R@{k}" + (f", the mean of {seeds} seeds" if seeds > 1 else "")
    what = runs_choice.settings(choice.selection) or _in_words(choice.chosen.settings)
    if any(job.state != "finished" for job in choice.chosen.jobs):
        lines.append("the test classes are not all measured yet")
    return [
        *lines,
        f"chosen by {by}: {what}",
        f"to train it on all training classes: {_on_all_classes(choice.chosen)}",
    ]


def _on_all_classes(entrant: Entrant) -> str:
    """Return the command that trains chosen settings on all training classes."""
    job = entrant.jobs[0]
    found = statistics.median_low([r["iteration"] for r in entrant.records if r])
    seeds = [job.config.seed for job in entrant.jobs]
    return runs_choice.on_all_classes(job.config, str(job.folder.path / CONFIG), found, seeds)


def _state(entrant: Entrant) -> str:
    return "diverged" if any(job.diverged for job in entrant.jobs) else entrant.jobs[0].state


def _in_words(settings: dict[str, str]) -> str:
    return " ".join(f"{key}={text}" for key, text in settings.items())
