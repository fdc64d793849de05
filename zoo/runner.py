"""From a config to a finished run folder: assemble, train, evaluate, write, resume."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.runs.folder import CONFIG, RunFolder
from zoo.support.checked import checked
from zoo.tables.notebook import RunResult
from zoo.training.experiment import assemble
from zoo.training.loop import Clock, InterruptedRunError, Training
from zoo.training.measure import evaluate, scores
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
    """
    if not isinstance(config, Config):
        config = loading.load(config, overrides)
    if not test and config.evaluate.validation is None:
        raise UserError("there is nothing to measure; set evaluate.validation to hold out classes")
    reporter = reporter or Reporter()
    folder = RunFolder.of(config)
    with folder.locked():
        if restart:
            folder.clear()
        if folder.finished:
            reporter.say(folder.finished_message)
            return RunResult(folder.result(config))
        if not test and folder.validated:
            return RunResult(folder.candidate(config))
        with _threads_as_before():
            return RunResult(_run(config, overrides, folder, reporter, test))


def _run(
    config: Config, overrides: Sequence[str], folder: RunFolder, reporter: Reporter, test: bool
) -> dict[str, Any]:
    experiment = assemble(config, reporter)
    folder.write(CONFIG, loading.dump(config).encode())
    reporter.say(f"run      {folder.path}")
    if overrides:
        reporter.say(f"changed  {shlex.join(overrides)}")
    introduce(experiment, reporter)
    clock = Clock()
    chosen = None
    if config.train.iterations:
        chosen = Training(experiment, folder, reporter, clock).run()
    if not test:
        return folder.finish_validation(result_of(experiment, chosen, clock))
    try:
        began = time.perf_counter()
        found = evaluate(experiment, reporter)
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped during the evaluation") from None
    result = result_of(experiment, chosen, clock, found.recall, time.perf_counter() - began)
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
