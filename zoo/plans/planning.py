"""Many runs as one job: list the runs of configs, and how far they are.

    plan = make(["configs/ablation/scale_glyphs.yaml"], seeds="0,1,2")

:mod:`zoo.plans.running` carries it out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from zoo.config import loading
from zoo.config.schema import ConfigFile
from zoo.errors import UserError
from zoo.plans import contest as plans_contest
from zoo.plans.contest import Contest, PlannedRun
from zoo.plans.engines.base import Engine
from zoo.plans.engines.local import Local
from zoo.plans.forecast import Estimate, Estimator, extras
from zoo.plans.jobs import Job
from zoo.plans.live import clock, counts
from zoo.runs.folder import RunFolder
from zoo.support import yaml
from zoo.support.text import counted

_HIDDEN = ("paper", "name")  # settings that do not change a run


@dataclass(frozen=True)
class Plan:
    """The runs that were asked for.

    Attributes:
        jobs: the runs, each once.
        repeats: how many duplicates were asked for.
        contests: which of the runs compete on held-out classes.
    """

    jobs: tuple[Job, ...]
    repeats: int = 0
    contests: tuple[Contest, ...] = ()


def sort(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments of the command into configs and settings.

    Raises:
        UserError: if there is no config.
    """
    settings = [a for a in arguments if "=" in a or _is_a_setting(a)]
    configs = [a for a in arguments if a not in settings]
    if not configs:
        raise UserError("name a config: a YAML file, or one that `zoo config` lists")
    return configs, settings


def _is_a_setting(text: str) -> bool:
    """Return whether a text is a setting without its value, such as ``loss.scale``."""
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
        sweeps: values to try, such as ``loss.scale=16,32``; several give every combination.
        seeds: such as ``0,1,2``.

    Raises:
        UserError: with a line for every problem of all the configs.
    """
    indices: dict[Path, int] = {}
    jobs: list[Job] = []
    contests: list[Contest] = []
    complaints: list[str] = []
    stems: list[str] = []  # for each job, the name of its config file
    asked = 0
    for source in sources:
        try:
            variants = loading.load_all(source, overrides, sweeps, seeds)
        except UserError as error:
            complaints += str(error).split("\n")
            continue
        runs = []
        for variant in variants:
            asked += 1
            folder = RunFolder(Path(variant.config.output) / variant.config.run_name())
            words = _in_words(variant.settings)
            index = indices.setdefault(folder.path.absolute(), len(jobs))
            if index == len(jobs):
                text = " ".join(f"{k}={v}" for k, v in words.items())
                jobs.append(Job(variant.config, text, folder))
                stems.append(Path(source).stem)
            runs.append(PlannedRun(index, variant.config, words))
        contests += plans_contest.contests(runs)
    contests = list({frozenset(run.number for run in one.runs): one for one in contests}.values())
    if complaints:
        raise UserError("\n".join(dict.fromkeys(complaints)))
    jobs = _with_sources(jobs, stems)
    for run in (run for contest in contests for run in contest.runs):
        jobs[run.number].test = False
    return Plan(tuple(jobs), asked - len(jobs), tuple(contests))


def _with_sources(jobs: Sequence[Job], sources: Sequence[str]) -> list[Job]:
    """Put the config file before the settings of jobs whose name several config files share."""
    by_name: dict[str, set[str]] = {}
    for job, source in zip(jobs, sources, strict=True):
        by_name.setdefault(job.config.name, set()).add(source)
    return [
        replace(job, settings=f"{source} {job.settings}".rstrip())
        if len(by_name[job.config.name]) > 1
        else job
        for job, source in zip(jobs, sources, strict=True)
    ]


def forget(plan: Plan) -> None:
    """Clear the folders of all runs, so that they start from scratch.

    Raises:
        UserError: if another process is using one of them (then none is cleared), or one cannot be
            cleared.
    """
    with ExitStack() as stack:
        for job in plan.jobs:
            stack.enter_context(job.folder.locked())
        for job in plan.jobs:
            job.folder.clear()


def table(plan: Plan) -> Group:
    """Return the table of all runs: settings that distinguish each, and how far it is."""
    made = _table("run", "settings", "state")
    states = [_how_far(job, _reached(job)) for job in plan.jobs]
    for job, state in zip(plan.jobs, states, strict=True):
        made.add_row(Text(job.name), Text(job.settings), state)
    return Group(made, *map(Text, (_summary(plan, states), *map(str, plan.contests))))


def forecast(plan: Plan, engine: Engine | None = None, restart: bool = False) -> Group:
    """Return the table of all runs with the time and disk space they will take, where known."""
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
        together = (engine or Local()).at_a_time([job.need for job in left])
        lines += _totals(found, together, Path(left[0].config.output))
        lines += dict.fromkeys(line for job in left for line in extras(job.config))
    return Group(made, *map(Text, lines))


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
        return "damaged, needs --restart"
    return f"to resume at iteration {reached}" if reached else "new"


def _reached(job: Job) -> int | None:
    """Return the iteration that a run resumes from; None if its checkpoint is damaged.

    The checkpoint of a run that has ended is not read.
    """
    try:
        return 0 if job.done else job.folder.reached()
    except UserError:
        return None


def _summary(plan: Plan, states: Sequence[str]) -> str:
    states = [re.split(" at |,", state)[0] for state in states]
    repeats = f"; {counted(plan.repeats, 'duplicate')} left out" if plan.repeats else ""
    runs = "1 run" if len(plan.jobs) == 1 else f"{len(plan.jobs)} runs"
    return f"{runs}: {counts(states)}{repeats}"


def _totals(found: Sequence[Estimate], together: int, output: Path) -> list[str]:
    """Return the lines on the total time and disk space."""
    known = [estimate.seconds for estimate in found if estimate.seconds is not None]
    unknown = len(found) - len(known)
    time = f"about {clock(sum(known) / together)}, {together} at a time" if known else "unknown"
    if known and unknown:
        time += f", and {counted(unknown, 'run')} of unknown time"
    sizes = [estimate.size for estimate in found if estimate.size is not None]
    disk = f"about {decimal(sum(sizes))}" if sizes else "unknown"
    if sizes and len(sizes) < len(found):
        disk += f", and {counted(len(found) - len(sizes), 'run')} of unknown size"
    folder = next(p for p in (output, *output.absolute().parents) if p.is_dir())
    free = decimal(shutil.disk_usage(folder).free)
    lines = [f"time: {time}", f"disk: {disk}; {free} are free"]
    if not known:
        lines[0] += "; a finished run on the same data and network would show it"
    return lines


def _in_words(settings: dict[str, Any]) -> dict[str, str]:
    """Return settings as written on the command line, by dotted key."""
    found: dict[str, str] = {}
    for dotted, value in settings.items():
        section, _, key = dotted.partition(".")
        if section in _HIDDEN:
            continue
        if isinstance(value, dict) and not key and "name" not in value:
            found |= {f"{section}.{k}": yaml.inline(v) for k, v in value.items()}
        else:
            found[dotted] = yaml.inline(value)
    return found
