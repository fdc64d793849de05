"""Bring all runs of a plan to their end.

    run(make(["configs/ablation/scale_glyphs.yaml"], seeds="0,1,2"))

A finished run is skipped and a stopped one is resumed, so the same plan can be carried out again
and again, also by several commands at once: a run that another process is running is left to it.
Each run has its own process; one that fails does not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zoo.errors import UserError
from zoo.plans import contest as plans_contest
from zoo.plans.contest import Choice, Contest
from zoo.plans.engines.base import Engine, Need
from zoo.plans.engines.local import Local
from zoo.plans.jobs import Job, State
from zoo.plans.live import LiveTable
from zoo.plans.planning import Plan
from zoo.plans.scheduler import Scheduler
from zoo.progress import Reporter
from zoo.runs.folder import BusyError


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan.

    Attributes:
        results: the ``result.json`` of each run that is finished and tested.
        failed: the jobs that failed, each with its ``reason``.
        unfinished: how many were stopped or not started.
        count: how many there are.
        what: what they are: runs, or the trials of a search.
        choices: the outcome of each contest.
    """

    results: tuple[dict[str, Any], ...]
    failed: tuple[Job, ...]
    unfinished: int
    count: int = 0
    choices: tuple[Choice, ...] = ()
    what: str = "runs"

    def failures(self) -> dict[str, list[str]]:
        """Return the names of failed runs by reason, which is often the same for all."""
        found: dict[str, list[str]] = {}
        for job in self.failed:
            found.setdefault(job.reason, []).append(job.name)
        return found


def run(plan: Plan, engine: Engine | None = None, reporter: Reporter | None = None) -> Outcome:
    """Run what is not finished yet; return when all of it has ended or was stopped.

    Competing runs are trained first; then the chosen ones are measured on the test classes, without
    more training.

    Args:
        plan: the runs.
        engine: carries them out; by default this machine, one on each GPU, or one on the CPU.
        reporter: where progress is reported; by default on stderr.

    Raises:
        UserError: the engine cannot be used here.
    """
    reporter = reporter or Reporter()
    jobs = [replace(job, state=state_of(job)) for job in plan.jobs]
    with Execution(engine or Local(), [job.need for job in jobs], reporter) as execution:
        go_on = execution.carry_out(jobs)
        choices = execution.decide(plan.contests, jobs, go_on)
    return outcome(jobs, choices)


class Execution:
    """Carries out jobs on an engine, which is opened when it is first needed.

    Args:
        engine: carries them out.
        needs: what all runs of the plan need.
        reporter: where progress is reported.
    """

    def __init__(self, engine: Engine, needs: Sequence[Need], reporter: Reporter) -> None:
        self.engine, self.needs, self.reporter = engine, needs, reporter
        self._open = False

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            self.engine.close()

    def carry_out(
        self,
        jobs: list[Job],
        more: Callable[[], Job | None] = lambda: None,
        observe: Callable[[Job], None] = lambda job: None,
    ) -> bool:
        """Run the jobs that are not finished; return False if a signal stopped them.

        Args:
            jobs: those that ``more`` returns are added.
            more: returns one more job when there is room for it; None if there is none now.
            observe: called with a job after each of its events, and at its end.
        """

        def added() -> Job | None:
            job = more()
            if job is not None:
                jobs.append(job)
            return job

        left = [job for job in jobs if job.state != "finished"]
        first = None if left else added()
        if first is not None:
            left = [first]
        if not left:
            return True
        if not self._open:
            self.engine.open(self.needs)
            self._open = True
        live = LiveTable(jobs, self.reporter.console, self.reporter.quiet)
        scheduler = Scheduler(left, self.engine, live, added, observe)
        with live.open():
            scheduler.run()
        return not scheduler.signals

    def decide(
        self, contests: Sequence[Contest], jobs: Sequence[Job], go_on: bool = True
    ) -> tuple[Choice, ...]:
        """Choose the best settings of each contest, and measure them on the test classes.

        Args:
            contests: their runs are numbers of ``jobs``.
            jobs: those that were carried out.
            go_on: whether to measure them; not after a request to stop.
        """
        records = [record_of(job) for job in jobs]
        choices = tuple(plans_contest.choose(contest, jobs, records) for contest in contests)
        chosen = [job for choice in choices for job in _start_test(choice, self.reporter)]
        if go_on:
            self.carry_out(chosen)
        return choices


def outcome(jobs: Sequence[Job], choices: tuple[Choice, ...] = ()) -> Outcome:
    """Return what has become of jobs."""
    results = tuple(record for job in jobs if job.test and (record := record_of(job)) is not None)
    failed = tuple(job for job in jobs if job.state == "failed")
    unfinished = sum(job.state not in ("finished", "failed", "pruned") for job in jobs)
    return Outcome(results, failed, unfinished, len(jobs), choices)


def _start_test(choice: Choice, reporter: Reporter) -> list[Job]:
    """Prepare the chosen runs for the test, and add the choice to their records.

    If another process with the same plan is testing them, this waits for it.
    """
    if choice.chosen is None or choice.selection is None:
        return []
    for job in choice.chosen.jobs:
        _select(job, choice.selection, reporter)
        job.test, job.recall = True, None
        job.state = state_of(job)
    return list(choice.chosen.jobs)


def _select(job: Job, selection: dict[str, Any], reporter: Reporter) -> None:
    reported = False
    while True:
        try:
            return job.folder.select(selection)
        except BusyError as error:
            if not reported:
                reporter.say(f"{error}; waiting for it")
            reported = True
            time.sleep(0.25)


def state_of(job: Job) -> State:
    """Return the state in which a run waits for the scheduler."""
    return "finished" if job.done else "waiting"


def record_of(job: Job) -> dict[str, Any] | None:
    """Return the record of a finished run; a run whose record is damaged has failed."""
    if job.state != "finished":
        return None
    try:
        folder = job.folder
        return folder.result(job.config) if job.test else folder.candidate(job.config)
    except UserError as error:
        job.state, job.reason = "failed", str(error)
        return None
