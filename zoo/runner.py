"""From a config to a finished run folder: assemble, train, evaluate, write, resume."""

from __future__ import annotations

import importlib
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError
from zoo.parallel.ranks import Ranks, started_by_torch
from zoo.progress import Reporter
from zoo.registry.components import REGISTERED_IN
from zoo.runs.folder import CONFIG, RunFolder
from zoo.runs.plugins import all_plugins
from zoo.support.checked import checked
from zoo.tables.notebook import RunResult
from zoo.training.chosen import Chosen
from zoo.training.experiment import Experiment, assemble
from zoo.training.loop import Clock, InterruptedRunError, Training
from zoo.training.measure import Evaluation, evaluate, scores
from zoo.training.record import result_of
from zoo.training.summary import introduce

__all__ = ["InterruptedRunError", "run"]


@checked
def run(
    config: Config | str | Path,
    overrides: Sequence[str] = (),
    *,
    restart: bool = False,
    reporter: Reporter | None = None,
    test: bool = True,
) -> RunResult:
    """Run an experiment to its end and return its result, the content of ``result.json``.

    The result is a dict that prints, or shows in a notebook, as its row of the leaderboard.

    A run that was stopped continues from its last checkpoint and ends as if it had never been
    stopped, bit for bit on a CPU. A finished run is not run again.

    Args:
        config: a checked config, or the path or name of one.
        overrides: ``key=value`` settings for a config given by path or name; a checked config
            already contains them, and they are only reported.
        restart: delete the content of the run folder and start from the beginning.
        reporter: reports progress; by default on stderr.
        test: whether to measure the test classes at the end. If not, the result is that of the
            held-out classes, the content of ``validation.json``; a later run with ``test=True``
            repeats no training.

    Raises:
        UserError: if the config or something it refers to cannot be used.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if Ctrl-C or SIGTERM stopped it, after saving.
        MachineError: if one of several processes was lost.
    """
    if not isinstance(config, Config):
        config = loading.load(config, overrides)
    if not test and config.evaluate.validation is None:
        raise UserError("there is nothing to measure; set evaluate.validation to hold out classes")
    reporter = reporter or Reporter()
    work = config, tuple(overrides), restart, test
    if started_by_torch():
        from zoo.parallel.worker import joined

        with joined(config.train.processes) as ranks:
            return _of_process(*work, ranks, reporter if ranks.first else Reporter(quiet=True))
    if config.train.processes > 1:
        from zoo.parallel.launch import launch

        start = partial(_of_launched, _registering(config))
        return launch(config.train.processes, start, *work, reporter=reporter)[0]
    return _of_process(*work, Ranks(), reporter)


def _registering(config: Config) -> list[str]:
    """Return the modules that other processes have to import, since they register components.

    Raises:
        UserError: one was registered in a script or notebook, which other processes cannot import.
    """
    modules = []
    for kind, plugin in all_plugins(config):
        if plugin.startswith(REGISTERED_IN):
            modules.append(plugin.removeprefix(REGISTERED_IN))
            if modules[-1] == "__main__":
                raise UserError(
                    f"train.processes: one of the {kind} is registered in this script or notebook, "
                    "which other processes cannot import; move its class to a module of its own"
                )
    return modules


def _of_launched(modules: list[str], *rest: Any) -> RunResult:
    """Do the part of one of several processes."""
    for module in modules:
        importlib.import_module(module)
    return _of_process(*rest)


def _of_process(
    config: Config,
    overrides: Sequence[str],
    restart: bool,
    test: bool,
    ranks: Ranks,
    reporter: Reporter,
) -> RunResult:
    """Do the part of one process; only the first reads and writes the run folder."""
    folder = RunFolder.of(config)
    with ExitStack() as held:
        if ranks.first:
            held.enter_context(folder.locked())
        there = ranks.from_first(lambda: _result_there(folder, config, restart, test, reporter))
        if there is not None:
            return RunResult(there)
        held.enter_context(_threads_as_before())
        return RunResult(_run(config, overrides, folder, reporter, test, ranks))


def _result_there(
    folder: RunFolder, config: Config, restart: bool, test: bool, reporter: Reporter
) -> dict[str, Any] | None:
    """Return the result that the folder has; None if it is to be made."""
    if restart:
        folder.clear()
    if folder.finished:
        reporter.say(folder.finished_message)
        return folder.result(config)
    return folder.candidate(config) if not test and folder.validated else None


def _run(
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    reporter: Reporter,
    test: bool,
    ranks: Ranks,
) -> dict[str, Any]:
    experiment = assemble(config, reporter, ranks)
    if ranks.first:
        folder.write(CONFIG, loading.dump(config).encode())
    reporter.say(f"run      {folder.path}")
    if overrides:
        reporter.say(f"changed  {shlex.join(overrides)}")
    introduce(experiment, reporter)
    with experiment.tracking.until_the_end():
        return _train_and_measure(experiment, folder, reporter, test)


def _train_and_measure(
    experiment: Experiment, folder: RunFolder, reporter: Reporter, test: bool
) -> dict[str, Any]:
    """Return the result of an experiment, written to its folder."""
    ranks, clock, chosen = experiment.ranks, Clock(), None
    if experiment.config.train.iterations:
        chosen = Training(experiment, folder, reporter, clock).run()
    if not test:
        return ranks.from_first(
            lambda: folder.finish_validation(result_of(experiment, chosen, clock))
        )
    try:
        began = time.perf_counter()
        found = evaluate(experiment, reporter)
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped during the evaluation") from None
    seconds = time.perf_counter() - began
    return ranks.from_first(lambda: _finish(experiment, folder, chosen, clock, found, seconds))


def _finish(
    experiment: Experiment,
    folder: RunFolder,
    chosen: Chosen | None,
    clock: Clock,
    found: Evaluation,
    seconds: float,
) -> dict[str, Any]:
    """Write the result of a run and return it."""
    result = result_of(experiment, chosen, clock, found.recall, seconds)
    if folder.validated:
        result["selection"] = folder.candidate().get("selection")
    if found.of_features is not None:
        result["recall_of_features"] = scores(found.of_features)
    if found.of_levels:
        result["recall_of_levels"] = {k: scores(level) for k, level in found.of_levels.items()}
    if found.measured.values:
        result["measures"] = found.measured.values
    if found.measured.clustering:
        result["clustering"] = found.measured.clustering
    labels = np.asarray(experiment.test.labels, np.int64)
    experiment.tracking.log(
        {"iteration": experiment.config.train.iterations, "recall": result["recall"]}
    )
    return folder.finish(result, found.recall.ranks.numpy(), labels)


@contextmanager
def _threads_as_before() -> Iterator[None]:
    """Restore PyTorch's number of threads when the run has ended."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
