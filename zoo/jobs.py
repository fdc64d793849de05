"""Many runs as one job: a plan of them, and what it takes to bring all of them to their end.

    plan = make(["configs/ablation/scale_glyphs.yaml"], seeds="0,1,2")
    run(plan)

A run that is finished is skipped, one that was stopped goes on, so that the same plan can be
carried out as often as it takes, by several commands at once too: a run that another process has is
left to it. Each run is a process of its own; one that fails stops no other.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from zoo import _selection, _yaml
from zoo import config as configuration
from zoo._estimate import Estimate, Estimator, besides
from zoo._live import Board, clock, counts
from zoo._scheduler import Job, Places, Scheduler, State
from zoo._selection import Choice, Contest, Run
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.results import BusyError, RunFolder
from zoo.schema import ConfigFile

_HIDDEN = ("paper", "name")  # settings that make no difference to a run


@dataclass(frozen=True)
class Plan:
    """The runs that somebody asks for, each once.

    Attributes:
        jobs: the runs.
        repeats: how many more were asked for that are one of them.
        contests: which of them compete on held-out classes for being tested.
    """

    jobs: tuple[Job, ...]
    repeats: int = 0
    contests: tuple[Contest, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a plan.

    Attributes:
        results: of all runs that are finished and tested, as ``result.json`` has them.
        failed: those that failed, each with its ``reason``.
        unfinished: how many were stopped or not begun.
        choices: what became of each contest.
    """

    results: tuple[dict[str, Any], ...]
    failed: tuple[Job, ...]
    unfinished: int
    choices: tuple[Choice, ...] = ()

    def failures(self) -> dict[str, list[str]]:
        """Return the runs that failed by the reason, which is often the same for all."""
        found: dict[str, list[str]] = {}
        for job in self.failed:
            found.setdefault(job.reason, []).append(job.name)
        return found


def sort(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which arguments of the command are configs and which are settings.

    Raises:
        UserError: if there is no config.
    """
    settings = [a for a in arguments if "=" in a or _is_a_setting(a)]
    configs = [a for a in arguments if a not in settings]
    if not configs:
        raise UserError("name a config: a YAML file, or one that `zoo config` lists")
    return configs, settings


def _is_a_setting(text: str) -> bool:
    """Return whether somebody forgot the value of a setting, as in ``loss.scale``."""
    return text.split(".")[0] in ConfigFile.model_fields and not Path(text).exists()


def make(
    sources: Sequence[str],
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    seeds: str | None = None,
) -> Plan:
    """Read configs and list their runs.

    Args:
        sources: paths, or names of shipped configs.
        overrides: settings for all of them, such as ``loss.scale=32``.
        sweeps: values to try, such as ``loss.scale=16,32``; several multiply.
        seeds: such as ``0,1,2``.

    Raises:
        UserError: with a line for every problem of all the configs.
    """
    places: dict[Path, int] = {}
    jobs: list[Job] = []
    contests: list[Contest] = []
    complaints: list[str] = []
    begun_by: list[str] = []  # the config that each job is of
    asked = 0
    for source in sources:
        try:
            variants = configuration.load_all(source, overrides, sweeps, seeds)
        except UserError as error:
            complaints += str(error).split("\n")
            continue
        runs = []
        for variant in variants:
            asked += 1
            folder = RunFolder(Path(variant.config.output) / variant.config.run_name())
            words = _in_words(variant.settings)
            place = places.setdefault(folder.path.absolute(), len(jobs))
            if place == len(jobs):
                told = " ".join(f"{k}={v}" for k, v in words.items())
                jobs.append(Job(variant.config, told, folder))
                begun_by.append(Path(source).stem)
            runs.append(Run(place, variant.config, words))
        contests += _selection.contests(runs)
    contests = list({frozenset(run.place for run in one.runs): one for one in contests}.values())
    if complaints:
        raise UserError("\n".join(dict.fromkeys(complaints)))
    jobs = _told_apart(jobs, begun_by)
    for run in (run for contest in contests for run in contest.runs):
        jobs[run.place].test = False
    return Plan(tuple(jobs), asked - len(jobs), tuple(contests))


def _told_apart(jobs: Sequence[Job], sources: Sequence[str]) -> list[Job]:
    """Return jobs of which those of several configs with one name say of which they are."""
    by_name: dict[str, set[str]] = {}
    for job, source in zip(jobs, sources, strict=True):
        by_name.setdefault(job.config.name, set()).add(source)
    return [
        replace(job, settings=f"{source} {job.settings}".rstrip())
        if len(by_name[job.config.name]) > 1
        else job
        for job, source in zip(jobs, sources, strict=True)
    ]


def run(plan: Plan, at_a_time: int | None = None, reporter: Reporter | None = None) -> Outcome:
    """Do what is left to do of a plan; return when all of it has ended or was stopped.

    Runs that compete are trained first; then those that were chosen are measured on the test
    classes, with the network that they have.

    The threads of a run follow from the plan and the machine, not from what is left to do: one that
    is begun after a stop is the run that it would have been without.

    Args:
        plan: the runs.
        at_a_time: how many of them; by default one on each GPU, or one on the CPU.
        reporter: where progress is told; by default on stderr.
    """
    reporter = reporter or Reporter()
    jobs = [replace(job, state=_where(job)) for job in plan.jobs]
    stopped = _work(jobs, plan, at_a_time, reporter)
    records = [_record(job) for job in jobs]
    choices = tuple(_selection.choose(contest, jobs, records) for contest in plan.contests)
    chosen = [job for choice in choices for job in _take(choice, reporter)]
    if not stopped:
        _work(chosen, plan, at_a_time, reporter)
    results = tuple(record for job in jobs if job.test and (record := _record(job)) is not None)
    failed = tuple(job for job in jobs if job.state == "failed")
    unfinished = sum(job.state not in ("finished", "failed") for job in jobs)
    return Outcome(results, failed, unfinished, choices)


def _work(jobs: Sequence[Job], plan: Plan, at_a_time: int | None, reporter: Reporter) -> bool:
    """Do what is left to do of some jobs of a plan; return whether a signal stopped it."""
    left = [job for job in jobs if job.state != "finished"]
    if not left:
        return False
    places = Places(_gpus_for(plan.jobs), at_a_time)
    board = Board(jobs, reporter.console, reporter.quiet)
    threads = _threads(places.at_a_time([job.config.device for job in plan.jobs]))
    scheduler = Scheduler(
        left, places, board.changed, board.tick, threads, board.stopping, board.left_over
    )
    with board.open():
        scheduler.run()
    return scheduler.signals > 0


def _take(choice: Choice, reporter: Reporter) -> list[Job]:
    """Have the chosen runs tested; their records say from now on among what they were chosen.

    Another process on the same plan may be testing them: then this waits for it.
    """
    if choice.chosen is None or choice.selection is None:
        return []
    for job in choice.chosen.jobs:
        _select(job, choice.selection, reporter)
        job.test, job.recall = True, None
        job.state = _where(job)
    return list(choice.chosen.jobs)


def _select(job: Job, selection: dict[str, Any], reporter: Reporter) -> None:
    said = False
    while True:
        try:
            return job.folder.select(selection)
        except BusyError as error:
            if not said:
                reporter.say(f"{error}; waiting for it")
            said = True
            time.sleep(0.25)


def forget(plan: Plan) -> None:
    """Clear the folders of all runs, so that they start anew.

    Raises:
        UserError: if another process is at one of them, and then all stay as they are; or if
            something is in the way.
    """
    with ExitStack() as stack:
        for job in plan.jobs:
            stack.enter_context(job.folder.locked())
        for job in plan.jobs:
            job.folder.clear()


def table(plan: Plan) -> Group:
    """Return what is to be done: each run, what sets it apart, and how far it is."""
    made = _table("run", "settings", "state")
    states = [_how_far(job, _reached(job)) for job in plan.jobs]
    for job, state in zip(plan.jobs, states, strict=True):
        made.add_row(Text(job.name), Text(job.settings), state)
    return Group(made, *map(Text, (_summary(plan, states), *map(str, plan.contests))))


def forecast(plan: Plan, at_a_time: int | None = None, restart: bool = False) -> Group:
    """Return the plan with the time and the disk that it will take, as far as that is known."""
    made = _table("run", "settings", "state", "time", "disk")
    estimator = Estimator([job.config for job in plan.jobs])
    left: list[Job] = []
    found: list[Estimate] = []
    states: list[str] = []
    for job in plan.jobs:
        reached = 0 if restart else _reached(job)
        states.append("new" if restart else _how_far(job, reached))
        cells = ("", "")
        if restart or not job.done:
            left.append(job)
            found.append(estimator.of(job.config, reached or 0))
            cells = found[-1].cells()
        made.add_row(Text(job.name), Text(job.settings), states[-1], *cells)
    lines = [_summary(plan, states), *map(str, plan.contests)]
    if left:
        together = Places(_gpus_for(left), at_a_time).at_a_time([j.config.device for j in left])
        lines += _totals(found, together, Path(left[0].config.output))
        lines += dict.fromkeys(line for job in left for line in besides(job.config))
    return Group(made, *map(Text, lines))


def _where(job: Job) -> State:
    return "finished" if job.done else "waiting"


def _record(job: Job) -> dict[str, Any] | None:
    """Return what a finished run left; a run whose result is damaged has failed."""
    if job.state != "finished":
        return None
    try:
        folder = job.folder
        return folder.result(job.config) if job.test else folder.candidate(job.config)
    except UserError as error:
        job.state, job.reason = "failed", str(error)
        return None


def _gpus_for(jobs: Sequence[Job]) -> int:
    """Return how many GPUs there are for runs that leave it open which one they take."""
    if not any(job.config.device in ("auto", "cuda") for job in jobs):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _threads(together: int) -> int | None:
    """Return the threads of each of so many processes; None for one alone, which has them all."""
    if together == 1:
        return None
    import torch

    return max(1, torch.get_num_threads() // together)


def _table(*heads: str) -> Table:
    made = Table(box=None, pad_edge=False)
    for head in heads:
        right = head in ("time", "disk")
        made.add_column(head, justify="right" if right else "left", overflow="fold")
    return made


def _how_far(job: Job, reached: int | None) -> str:
    if job.done:
        return "finished"
    if reached is None:
        return "damaged, to be run with --restart"
    return f"to resume at iteration {reached}" if reached else "new"


def _reached(job: Job) -> int | None:
    """Return the iteration that a run goes on from; None where its checkpoint is damaged.

    That of a run which is at its end is not looked at.
    """
    try:
        return 0 if job.done else job.folder.reached()
    except UserError:
        return None


def _summary(plan: Plan, states: Sequence[str]) -> str:
    states = [re.split(" at |,", state)[0] for state in states]
    repeats = f"; {plan.repeats} more asked for were the same" if plan.repeats else ""
    runs = "1 run" if len(plan.jobs) == 1 else f"{len(plan.jobs)} runs"
    return f"{runs}: {counts(states)}{repeats}"


def _totals(found: Sequence[Estimate], together: int, output: Path) -> list[str]:
    """Return what all of it takes, and what is not known."""
    known = [estimate.seconds for estimate in found if estimate.seconds is not None]
    unknown = len(found) - len(known)
    time = f"about {clock(sum(known) / together)}, {together} at a time" if known else "unknown"
    if known and unknown:
        time += f", and {unknown} runs of which nothing is known"
    sizes = [estimate.size for estimate in found if estimate.size is not None]
    disk = f"about {decimal(sum(sizes))}" if sizes else "unknown"
    if sizes and len(sizes) < len(found):
        disk += f", and {len(found) - len(sizes)} runs of which nothing is known"
    there = next(p for p in (output, *output.absolute().parents) if p.is_dir())
    free = decimal(shutil.disk_usage(there).free)
    lines = [f"time: {time}", f"disk: {disk}; {free} are free"]
    if not known:
        lines[0] += "; a finished run on the same data and network would tell"
    return lines


def _in_words(settings: dict[str, Any]) -> dict[str, str]:
    """Return settings as the command line would have them, by dotted key."""
    found: dict[str, str] = {}
    for dotted, value in settings.items():
        section, _, key = dotted.partition(".")
        if section in _HIDDEN:
            continue
        if isinstance(value, dict) and not key and "name" not in value:
            found |= {f"{section}.{k}": _yaml.inline(v) for k, v in value.items()}
        else:
            found[dotted] = _yaml.inline(value)
    return found
