"""Trials become runs; their results go back to Optuna."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.errors import UserError
from zoo.plans.contest import Contest, PlannedRun
from zoo.plans.engines.base import Engine
from zoo.plans.engines.local import Local
from zoo.plans.jobs import Job
from zoo.plans.running import Execution, Outcome, outcome, record_of, state_of
from zoo.plans.tune.search import Search, module
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.support.text import counted

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_FAILURES = 3  # of the first trials, after which no more are tried


def tune(search: Search, engine: Engine | None = None, reporter: Reporter | None = None) -> Outcome:
    """Make the trials that are missing; choose the best settings, and measure them once.

    Trials that an earlier command left are continued; those of other commands are waited for.

    Args:
        search: what is searched.
        engine: carries out the runs; by default this machine.
        reporter: where progress is reported; by default on stderr.

    Returns:
        the outcome of the contest of all trials that ended. If the search was stopped, nothing is
        chosen: the test classes are measured once.

    Raises:
        UserError: the first trials all failed; with the reason.
    """
    reporter = reporter or Reporter()
    trials = Trials(search)
    jobs = trials.resumed()
    with Execution(engine or Local(), [search.need] * search.trials, reporter) as execution:
        go_on = execution.carry_out(jobs, trials.more, trials.observe)
        if trials.refused:
            raise UserError(f"the first {_FAILURES} trials failed: {trials.refused}")
        if not go_on or trials.left:
            return Outcome((), _failed(jobs), trials.left, search.trials, what="trials")
        contest, entrants = trials.contest()
        reporter.say(trials.summary())
        choices = execution.decide([contest], entrants)
    return replace(outcome(entrants, choices), failed=_failed([*jobs, *entrants]))


def _failed(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the runs that failed; those that diverged are results of a search."""
    found = {job.name: job for job in jobs if job.state == "failed" and not job.diverged}
    return tuple(found.values())


class Trials:
    """The trials of a search, as jobs."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._optuna = module()
        self._study = search.study()
        self._open: dict[int, Trial] = {}
        self._jobs: dict[int, list[Job]] = {}
        self._number: dict[int, int] = {}  # of the trial, by the identity of a job
        self._reported: dict[int, int] = {}  # the last iteration, by number
        self._waiting: deque[Job] = deque()
        self._failures: dict[int, str] = {}  # reasons, by number

    @property
    def refused(self) -> str:
        """Why the first trials failed, if all did."""
        refused = len(self._failures) >= _FAILURES and not self._frozen("COMPLETE")
        return self._why if refused else ""

    @property
    def _why(self) -> str:
        """Why the last trial that failed did."""
        return next(reversed(self._failures.values()), "")

    @property
    def left(self) -> int:
        """How many trials have not ended."""
        states = self._optuna.trial.TrialState
        over = (states.COMPLETE, states.PRUNED, states.FAIL)
        ended = self._study.get_trials(deepcopy=False, states=over)
        return max(0, self._search.trials - len(ended))

    def resumed(self) -> list[Job]:
        """Return the jobs of the trials so far: those that ended, and those that were left."""
        for frozen in self._frozen("COMPLETE"):
            self._add(frozen.number, self._search.settings(frozen.params))
        self._adopt()
        found = [job for jobs in self._jobs.values() for job in jobs]
        self._waiting.clear()
        return found

    def more(self) -> Job | None:
        """Return the next run; None if all trials have been begun."""
        while not (self._waiting or self.refused):
            if len(self._study.get_trials(deepcopy=False)) < self._search.trials:
                self._ask()
            elif not self._adopt():
                return None
        return None if self.refused else self._waiting.popleft()

    def observe(self, job: Job) -> None:
        """Pass on what is new of a run: measurements of held-out classes, and its end."""
        number = self._number.get(id(job), -1)
        trial = self._open.get(number)
        if trial is None:
            return
        if job is self._jobs[number][0]:
            self._report(trial, job)
        if job.state in ("finished", "failed", "pruned"):
            self._end(number)

    def contest(self) -> tuple[Contest, list[Job]]:
        """Return the contest of all trials that ended with a result, and its jobs.

        Raises:
            UserError: there is none.
        """
        runs: list[PlannedRun] = []
        jobs: dict[str, Job] = {}
        for frozen in self._frozen("COMPLETE"):
            settings = self._search.settings(frozen.params)
            found = self._jobs.get(frozen.number) or self._add(frozen.number, settings)
            for job in found:
                if job.name not in jobs:  # settings that were drawn twice
                    runs.append(PlannedRun(len(jobs), job.config, settings))
                    jobs[job.name] = job
        if not runs:
            raise UserError(f"no trial has ended with a result; {self.summary()}")
        space = {one.key: one.text for one in self._search.space}
        tried = len(self._study.get_trials(deepcopy=False))
        return Contest(tuple(runs), space, tried), list(jobs.values())

    def summary(self) -> str:
        """Return how many trials there are of each kind."""
        found = {
            "finished": self._frozen("COMPLETE"),
            "pruned": self._frozen("PRUNED"),
            "failed": self._frozen("FAIL"),
        }
        counts = ", ".join(f"{len(trials)} {word}" for word, trials in found.items() if trials)
        number = counted(sum(map(len, found.values())), "trial")
        why = f"; the last that failed: {self._why}" if self._why else ""
        return f"{number}: {counts}; in {self._search.file}{why}"

    def _frozen(self, state: str) -> list[FrozenTrial]:
        wanted = (self._optuna.trial.TrialState[state],)
        return self._study.get_trials(deepcopy=False, states=wanted)

    def _ask(self) -> None:
        """Begin a trial; one whose settings do not fit together fails at once."""
        trial = self._study.ask({one.key: one.distribution for one in self._search.space})
        try:
            self._add(trial.number, self._search.settings(trial.params))
        except UserError as error:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            self._failures[trial.number] = str(error)
            return
        self._open[trial.number] = trial
        self._end(trial.number)  # settings that were drawn before, or whose runs are there

    def _adopt(self) -> bool:
        """Take the trials that nobody has told the end of; return whether there were any.

        The lock of a run decides whether it is continued here, or another command has it.
        """
        adopted = [one for one in self._frozen("RUNNING") if one.number not in self._open]
        for frozen in adopted:
            self._open[frozen.number] = self._optuna.trial.Trial(self._study, frozen._trial_id)
            self._reported[frozen.number] = max(frozen.intermediate_values, default=0)
            self._add(frozen.number, self._search.settings(frozen.params))
            self._end(frozen.number)  # a command that was killed may not have told it
        return bool(adopted)

    def _add(self, number: int, settings: dict[str, str]) -> list[Job]:
        """Make the jobs of a trial, one for each seed."""
        configs = self._search.configs(settings)
        jobs = []
        for config in configs:
            words = " ".join(f"{key}={text}" for key, text in settings.items())
            words += f" seed={config.seed}" if len(configs) > 1 else ""
            job = Job(config, words, RunFolder.of(config), test=False)
            job.state = state_of(job)
            jobs.append(job)
            self._number[id(job)] = number
        self._jobs[number] = jobs
        self._waiting.extend(jobs)
        return jobs

    def _report(self, trial: Trial, job: Job) -> None:
        """Report new measurements of the first seed; prune the trial if it is worse than others."""
        iteration = job.iteration or 0
        if iteration - self._reported.get(trial.number, 0) < self._search.every:
            return
        for line in job.folder.metrics():
            recall = line.get("recall_of_validation")
            step = line["iteration"]
            if recall and step > self._reported.get(trial.number, 0):
                trial.report(recall[min(recall, key=int)], step)
                self._reported[trial.number] = step
        if self._search.prune and job.state == "running" and trial.should_prune():
            job.pruned = True

    def _end(self, number: int) -> None:
        """Tell Optuna how a trial has ended, once its last run has."""
        jobs = self._jobs[number]
        states = self._optuna.trial.TrialState
        records = [record_of(job) for job in jobs]
        failed = [job for job in jobs if job.state == "failed"]
        if any(job.state == "pruned" or job.diverged for job in jobs):
            self._tell(number, states.PRUNED)
        elif failed:  # it stays open, so that the next command tries it again
            self._failures[number] = failed[0].reason
        elif all(job.state == "finished" for job in jobs):
            self._tell(number, states.COMPLETE, _mean([r for r in records if r]))
        else:
            return
        gone = {id(job) for job in jobs}  # the runs that are not needed any more
        self._waiting = deque(job for job in self._waiting if id(job) not in gone)

    def _tell(self, number: int, state: object, value: float | None = None) -> None:
        trial = self._open.pop(number)
        # Another command may have told it, if both knew the run.
        self._study.tell(trial, value, state=state, skip_if_finished=True)  # type: ignore[arg-type]


def _mean(records: Sequence[dict[str, dict[str, dict[str, float]]]]) -> float:
    """Return the mean Recall at the first K of the held-out classes."""
    found = [record["validation"]["recall"] for record in records]
    return statistics.fmean(recall[min(recall, key=int)] for recall in found)
