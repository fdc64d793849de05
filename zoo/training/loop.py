"""The training loop: steps, logs, intermediate evaluations, checkpoints, interruption."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from zoo.data.pipeline import Batch, training_batches
from zoo.data.splits import fingerprint
from zoo.errors import UserError
from zoo.evaluation.recall import Recall
from zoo.progress import Reporter, TrainingReport
from zoo.runs import identity
from zoo.runs.choice import on_all_classes
from zoo.runs.folder import CONFIG, RunFolder
from zoo.support import signals
from zoo.training.agreement import align
from zoo.training.chosen import Chosen
from zoo.training.epochs import Epochs
from zoo.training.experiment import Experiment
from zoo.training.measure import embed, measurer, scores
from zoo.training.step import Trainer

_LOGGED_AT_FIRST = (1, 2, 5, 10, 20)
_MOST_THREADS = 4096
"""More than any machine has: a checkpoint with more is damaged, and OpenMP would abort."""


class InterruptedRunError(Exception):
    """The user stopped the run; its progress is saved."""


@dataclass
class Clock:
    """Seconds of training and images seen, over all sessions of a run."""

    seconds: float = 0.0
    images: int = 0
    _since: float | None = None

    def start(self) -> None:
        """Start or continue counting seconds."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting seconds."""
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None


class Training:
    """The training of one session: from the last checkpoint, if there is one, to the end."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, reporter: Reporter, clock: Clock
    ) -> None:
        assert experiment.train is not None
        assert experiment.sampler is not None
        assert experiment.loss is not None
        self.experiment, self.folder, self.reporter = experiment, folder, reporter
        self.clock, self.config, self.ranks = clock, experiment.config, experiment.ranks
        self.train, self.sampler = experiment.train, experiment.sampler
        self.trainer = Trainer(
            self.config,
            experiment.embedder,
            experiment.loss,
            experiment.miner,
            experiment.precision,
            experiment.ranks,
        )
        self.epochs = Epochs(experiment)
        self.fingerprint = fingerprint(self.config, self.train)
        self.chosen = None
        if experiment.validation is not None:
            self.chosen = Chosen(keep=self.config.evaluate.every is not None)

    def run(self) -> Chosen | None:
        """Train to the last iteration; raise InterruptedRunError if a signal asked to stop.

        Returns:
            the checkpoint chosen on held-out classes, which is loaded; None if none are held out.
        """
        self._resume()
        trainer, total = self.trainer, self.config.train.iterations
        batches = training_batches(
            self.train,
            self.config.images,
            self.sampler,
            seed=self.config.seed,
            start=trainer.iteration,
            stop=total,
            workers=self.experiment.workers,
            device=self.experiment.device,
            ranks=self.ranks,
        )
        measure = "R@1" if self.chosen is None else "validation R@1"
        with (
            _stop_on_signal() as asked,
            self.reporter.training(trainer.iteration, total, measure) as report,
        ):
            stopped = False
            self.clock.start()
            for batch in self._by_epoch(batches):
                trainer.step(batch)
                self.clock.images += len(batch.indices)
                report.advance()
                self._report(report)
                (stopped,) = self.ranks.any(asked())
                if stopped or self._due(self.config.train.checkpoint_every):
                    self._save(batch.state)
                if stopped:
                    break
            (stopped,) = self.ranks.any(stopped or asked())
            if stopped:  # at the end too: measuring takes long, and can be done later
                if not self.ranks.first:
                    sys.exit()  # the first process reports it
                raise InterruptedRunError(f"saved at iteration {trainer.iteration} of {total}")
        self.clock.stop()
        if self.chosen is not None:
            self.chosen.restore(self.experiment.embedder)
            _report_choice(self.chosen, self.reporter)
            if self.chosen.keep:
                source = str(self.folder.path / CONFIG)
                again = on_all_classes(self.config, source, self.chosen.iteration)
                self.reporter.say(f"to train it on all training classes: {again}")
        return self.chosen

    def _by_epoch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches; before the first of an epoch, its hooks are called."""
        over = self.config.schedule.over or self.config.train.iterations
        while True:
            if self.trainer.iteration < self.config.train.iterations:
                self.epochs.begin(self.trainer.iteration)  # it may decide what the next batch is
                for component in self.experiment.scheduled:
                    component.set(self.trainer.iteration / over)
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _due(self, every: int) -> bool:
        done = self.trainer.iteration
        return done % every == 0 or done == self.config.train.iterations

    def _resume(self) -> None:
        state = self.ranks.from_first(lambda: self.folder.network(self.config))
        if state is not None:
            try:
                self._continue_from(state)
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"{self.folder.path}: the checkpoint does not belong to this run "
                    f"({type(error).__name__}); start again with --restart"
                ) from error
            self.reporter.say(f"resumed  from iteration {self.trainer.iteration}")
        self.ranks.from_first(lambda: self.folder.rewind(self.trainer.iteration))
        self.experiment.tracking.begin(self.trainer.iteration)

    def _continue_from(self, state: dict[str, Any]) -> None:
        done, total = state["iteration"], self.config.train.iterations
        if done > total:
            raise UserError(
                f"{self.folder.path}: the checkpoint is of iteration {done} of {total}; start "
                "again with --restart"
            )
        if state["fingerprint"] != self.fingerprint:
            raise UserError(
                f"{self.folder.path}: the training images have changed since this run began; "
                "bring them back, or start again with --restart"
            )
        if self.experiment.device.type == "cpu" and state.get("processes", 1) == self.ranks.size:
            _set_threads(state.get("threads"), self.reporter)
        self.trainer.load_state_dict(state)
        self.sampler.load_state_dict(state["sampler"])
        self.epochs.load_state_dict(state.get("epochs", self.epochs.state_dict()))
        seconds, images = state["clock"]
        self.clock.seconds, self.clock.images = float(seconds), int(images)
        if self.chosen is not None:
            self.chosen.load_state_dict(state["chosen"])

    def _save(self, sampler_state: dict[str, Any]) -> None:
        self.trainer.check()
        self.trainer.check_weights()
        align(self.trainer.loss, self.ranks, self.trainer.loss_name)
        self.clock.stop()
        state = {
            **self.trainer.state_dict(sampler_state),
            "run": identity.of_run(self.config),
            "threads": torch.get_num_threads(),
            "processes": self.ranks.size,
            "fingerprint": self.fingerprint,
            "clock": [self.clock.seconds, self.clock.images],
            "epochs": self.epochs.state_dict(),
        }
        if self.chosen is not None:
            state["chosen"] = self.chosen.state_dict()
            if self.chosen.keep and self.trainer.iteration == self.config.train.iterations:
                # Users of the checkpoint shall get the network that is tested.
                state["embedder"] = state["chosen"].pop("weights")
        self.ranks.from_first(lambda: self.folder.save_checkpoint(state))
        self.clock.start()

    def _report(self, report: TrainingReport) -> None:
        """Write and show the loss and Recall@K whenever they are due."""
        trainer = self.trainer
        if self._logs():
            trainer.check()
            trainer.check_weights()
            levels, norm = trainer.meter.read()
            record = {
                "iteration": trainer.iteration,
                "loss": sum(levels),
                "gradient_norm": norm,
                "lr": trainer.optimizer.param_groups[0]["lr"],
            }
            self._append(record | ({"loss_of_levels": levels} if len(levels) > 1 else {}))
            report.show(trainer.iteration, loss=sum(levels))
        if self._measures():
            self.clock.stop()
            recall = self._recall()
            key = "recall" if self.chosen is None else "recall_of_validation"
            self._append({"iteration": trainer.iteration, key: scores(recall)})
            if self.chosen is not None:
                self.chosen.offer(trainer.iteration, recall, self.experiment.embedder)
            report.show(trainer.iteration, recall=recall[min(recall)])
            self.clock.start()

    def _append(self, record: dict[str, Any]) -> None:
        """Append a line to the metrics of the run, and show it wherever they are tracked."""
        if self.ranks.first:
            self.folder.append(record)
            self.experiment.tracking.log(record)

    def _logs(self) -> bool:
        """Whether the loss is due: often at first, so that slow runs soon show if they learn."""
        every = self.config.train.log_every
        return self._due(every) or self.trainer.iteration in _LOGGED_AT_FIRST

    def _recall(self) -> Recall:
        """Measure only the embedding; pooled features and single levels are measured at the end."""
        held_out = self.experiment.validation
        dataset = self.experiment.test if held_out is None else held_out
        embeddings, _ = embed(self.experiment, dataset, self.reporter)
        return measurer(self.experiment, dataset)(embeddings)

    def _measures(self) -> bool:
        """Whether Recall@K is due; at the end, only that of held-out classes is measured here."""
        every, done = self.config.evaluate.every, self.trainer.iteration
        if done == self.config.train.iterations:
            return self.chosen is not None
        return every is not None and done % every == 0


def _report_choice(chosen: Chosen, reporter: Reporter) -> None:
    k = min(chosen.recall)
    score = f"validation R@{k} {100 * chosen.recall[k]:.2f}"
    reporter.say(f"{'chosen' if chosen.keep else 'last':<8} iteration {chosen.iteration}, {score}")


def _set_threads(wanted: int | None, reporter: Reporter) -> None:
    """Use as many threads as the run started with: another order of summation changes results."""
    given = torch.get_num_threads()
    if wanted is not None and not (isinstance(wanted, int) and 1 <= wanted <= _MOST_THREADS):
        raise ValueError("not a number of threads")
    if wanted is not None and wanted != given:
        torch.set_num_threads(wanted)
        reporter.say(f"threads  {wanted} instead of {given}, as at the start of the run")


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that says if Ctrl-C or SIGTERM came; a second one stops at once."""
    asked = threading.Event()
    with signals.on_stop(asked.set, once=True):
        yield asked.is_set
