"""From a config to a finished run folder: assemble, train, evaluate, write, resume."""

from __future__ import annotations

import random
import shlex
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from rich.filesize import decimal
from torch import Tensor, nn

from zoo import _contracts, _identity, _rehearsal, _signals, environment, registry
from zoo import config as configuration
from zoo._checked import checked
from zoo._choice import on_all_classes
from zoo._holdout import hold_back
from zoo._iterates import Chosen
from zoo._notebook import RunResult
from zoo._plugins import plugins_of
from zoo._words import as_setting
from zoo.base import BatchSampler, ImageDataset, Split
from zoo.cache import CachedImages, decoded_once
from zoo.embedder import Embedder
from zoo.errors import UserError, blaming
from zoo.evaluate import Recall, recall_at_k
from zoo.measures import Measured, measure
from zoo.pipeline import centre_crops, evaluation_batches, first_batch, training_batches
from zoo.progress import Reporter, TrainingReport
from zoo.results import CONFIG, RunFolder
from zoo.schema import Component, Config, numbers_alike
from zoo.train import Trainer, choose_device, choose_precision, unchanged_randomness

_LOGGED_AT_FIRST = (1, 2, 5, 10, 20)
_MOST_THREADS = 4096
"""More than any machine has: a checkpoint that asks for them is damaged, and OpenMP would abort."""


class InterruptedRunError(Exception):
    """The user stopped the run; what was done is saved."""


@dataclass
class Experiment:
    """The objects that a config stands for; those of training are None at 0 iterations.

    ``validation`` are the classes held back from ``train``; None where none are.
    """

    config: Config
    device: torch.device
    precision: str
    workers: int
    test: ImageDataset
    embedder: Embedder
    train: ImageDataset | None = None
    validation: ImageDataset | None = None
    loss: nn.Module | None = None
    miner: Callable[[Tensor, Tensor], Any] | None = None
    sampler: BatchSampler | None = None


@checked
def run(
    config: Config | str | Path,
    overrides: Sequence[str] = (),
    *,
    restart: bool = False,
    reporter: Reporter | None = None,
    test: bool = True,
) -> RunResult:
    """Run an experiment to its end and return its result, as ``result.json`` has it.

    The result is a dict; printed, or as the last line of a cell, it is its row of the leaderboard.

    A run that was stopped goes on from its last checkpoint and ends as if it had never been
    stopped, bit for bit on a CPU. A finished run is not run again.

    Args:
        config: a checked config, or the path or name of one.
        overrides: ``key=value`` settings for a config given by path or name; of a checked config,
            which has them, they are told only.
        restart: forget what the run folder holds and start from the beginning.
        reporter: where progress is told; by default on stderr.
        test: whether to measure the test classes at the end. Without, held-out classes have the
            last word, and what they say is returned, as ``validation.json`` has it; run once more
            with it, no training is repeated.

    Raises:
        UserError: if the config or what it refers to cannot be used.
        DivergedError: if the loss is no longer a number.
        InterruptedRunError: if Ctrl-C or SIGTERM stopped it, after saving.
    """
    if not isinstance(config, Config):
        config = configuration.load(config, overrides)
    if not test and config.evaluate.validation is None:
        raise UserError("there is nothing to measure; set evaluate.validation to hold classes back")
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


def assemble(config: Config, reporter: Reporter | None = None) -> Experiment:
    """Build the components of a config, in an order that the seed determines.

    Images that are to be cached are, which may take a while: the reporter tells.
    """
    device = choose_device(config.device)
    precision = choose_precision(config.train.precision, device)
    splits: tuple[Split, ...] = ("test", "train") if config.train.iterations else ("test",)
    datasets = [build_dataset(config, split) for split in splits]
    _check_classes(config, datasets[0])
    if len(datasets) > 1 and (shared := _contracts.splits(datasets[1], datasets[0])):
        warnings.warn(f"{config.dataset.name} {shared}", stacklevel=2)
    embedder = build_embedder(config, device)  # weights that are missing are told of at once
    test, *others = decoded(config, datasets, reporter or Reporter())
    train = others[0] if others else None
    validation = None
    if train is not None and config.evaluate.validation is not None:
        train, validation = hold_back(train, config.evaluate.validation, config.seed)
    workers = config.train.workers
    experiment = Experiment(
        config,
        device,
        precision,
        _default_workers(device, test) if workers is None else workers,
        test,
        embedder,
        validation=validation,
    )
    if train is not None:
        _add_training(experiment, train)
    _check_memory(experiment)
    return experiment


def _check_classes(config: Config, test: ImageDataset) -> None:
    """Refuse a test that no network can pass: each query is alone in its class."""
    labels = np.asarray(test.labels)
    if len(np.unique(labels)) == len(labels):
        raise UserError(
            f"{config.dataset.name}: the test split has one image of each class, so that none can "
            "be found by another and Recall@K is 0 for every network; it takes classes of two or "
            "more"
        )


def _check_memory(experiment: Experiment) -> None:
    """Refuse batches whose pixels alone, as bytes and as the network gets them, have no room."""
    config, room = experiment.config, environment.memory()
    if room is None:
        return
    # Test images are read after training only, so a training image stands for them.
    looked_at = experiment.test if experiment.train is None else experiment.train
    planes, height, width = centre_crops(looked_at, config.images, [0])[0].shape
    count = min(config.evaluate.batch_size, len(experiment.test))
    batches = {"evaluate.batch_size": (count, count)}
    if experiment.sampler is not None:
        count = getattr(experiment.sampler, "batch_size", 0)
        batches["the sampler's batches"] = (count, min(count, config.train.chunk_size or count))
    for what, (count, at_once) in batches.items():
        floats = 4 * at_once if experiment.device.type == "cpu" else 0
        needed = planes * height * width * (count + floats)
        if needed > room:
            raise UserError(
                f"{count:,} images of {width}x{height} pixels take {decimal(needed)}, and there "
                f"are {decimal(room)} of memory; lower {what}, images.crop or images.resize"
            )


def build_embedder(config: Config, device: torch.device) -> Embedder:
    """Return the network of a config as it is before training, which its seed determines."""
    _seed(config.seed)
    model = config.model
    backbone = _build("backbones", model.backbone, {})
    embedder = Embedder(
        backbone, model.embedding_size, model.pooling, model.freeze, model.backbone.name
    )
    layout = torch.channels_last if config.train.channels_last else torch.contiguous_format
    on_device: Embedder = embedder.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    return on_device


def _add_training(experiment: Experiment, train: ImageDataset) -> None:
    config = experiment.config
    assert config.loss is not None
    assert config.sampler is not None
    levels = experiment.embedder.level_sizes
    experiment.train = train
    batches = {
        "labels": np.asarray(train.labels),
        "seed": config.seed,
        "embed": partial(_embed_some, experiment),
    }
    experiment.sampler = _build("samplers", config.sampler, batches)
    _refuse(config.sampler, _contracts.sampler(experiment.sampler))
    losses = [
        _build("losses", config.loss, {"num_classes": len(train.class_names), "embedding_size": d})
        for d in levels
    ]
    _refuse(config.loss, _contracts.module(losses[0]))
    _rehearsal.check_call(losses[0], config.loss.name, config.miner is not None)
    experiment.loss = (losses[0] if len(losses) == 1 else nn.ModuleList(losses)).to(
        experiment.device
    )
    check_batch = getattr(losses[0], "check_batch", None)
    batch_size = getattr(experiment.sampler, "batch_size", None)
    if check_batch is not None and batch_size is not None:
        check_batch(batch_size, levels[0])
    if config.miner is not None:
        miner = _build("miners", config.miner, {})
        _refuse(config.miner, _contracts.module(miner))
        experiment.miner = miner.to(experiment.device)
    _rehearse(experiment, levels[0])


def _rehearse(experiment: Experiment, size: int) -> None:
    """Try sampler, miner and loss once; with others like them, which leaves these as they are."""
    config, train = experiment.config, experiment.train
    assert config.loss is not None
    assert train is not None
    labels = np.asarray(train.labels, np.int64)
    sizes = {"num_classes": len(train.class_names), "embedding_size": size}
    with unchanged_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indices = _first_batch(experiment, labels)
        loss = _build("losses", config.loss, sizes).to(experiment.device)
        miner = config.miner and _build("miners", config.miner, {}).to(experiment.device)
        of_batch = torch.from_numpy(labels[indices]).to(experiment.device)
        names = (config.loss.name, config.miner.name if config.miner else "")
        _rehearsal.rehearse(loss, miner, size, of_batch, names)


def _first_batch(experiment: Experiment, labels: NDArray[np.int64]) -> list[int]:
    """Return the indices of a first batch; of a sampler that asks the network, some in its place.

    Raises:
        UserError: if the sampler gives what is no batch, or a state that no checkpoint can hold.
    """
    config = experiment.config
    assert config.sampler is not None
    if getattr(experiment.sampler, "draws_late", False):
        return [int(i) for i in np.argsort(labels, kind="stable")[:64]]
    batches = {"labels": labels, "seed": config.seed, "embed": partial(_embed_some, experiment)}
    sampler = _build("samplers", config.sampler, batches)
    return first_batch(sampler, len(labels))


def _embed_some(experiment: Experiment, indices: list[int]) -> NDArray[np.float32]:
    """Return the embeddings of some training images, as a sampler wants them."""
    assert experiment.train is not None
    embedder, size = experiment.embedder.eval(), experiment.config.evaluate.batch_size
    parts = [indices[i : i + size] for i in range(0, len(indices), size)]
    with torch.inference_mode():
        crops = (centre_crops(experiment.train, experiment.config.images, part) for part in parts)
        on_device = (images.to(experiment.device) for images in crops)
        found = torch.cat([embedder.combined(embedder(images)) for images in on_device])
    embeddings: NDArray[np.float32] = found.float().cpu().numpy()
    return embeddings


def embed(
    experiment: Experiment, dataset: ImageDataset, reporter: Reporter
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, d) and the pooled features (N, C) of a data set in its order.

    Both are float32, on the device, and computed in float32 whatever precision the training has.
    """
    size = experiment.config.evaluate.batch_size
    batches = evaluation_batches(
        dataset,
        experiment.config.images,
        batch_size=size,
        workers=experiment.workers,
        device=experiment.device,
    )
    embedder = experiment.embedder.eval()
    embeddings, features = [], []
    with torch.inference_mode():
        for images in reporter.track(batches, -(-len(dataset) // size), "evaluating"):
            pooled = embedder.features(images.to(experiment.device, non_blocking=True))
            features.append(embedder.combined(pooled))
            embeddings.append(embedder.combined(embedder.project(pooled)))
    return torch.cat(embeddings), torch.cat(features)


class Evaluation(NamedTuple):
    """What was measured on a data set.

    Attributes:
        recall: by embedding; by all levels together where there are several.
        of_features: by the pooled features below it; None if not asked for.
        of_levels: by the embedding of each level alone, where there are several.
        measured: what else the config asks for, by embedding.
    """

    recall: Recall
    of_features: Recall | None
    of_levels: dict[str, Recall]
    measured: Measured


def evaluate(
    experiment: Experiment, reporter: Reporter, dataset: ImageDataset | None = None
) -> Evaluation:
    """Embed a data set, by default the test split, and measure all that the config asks for."""
    dataset = experiment.test if dataset is None else dataset
    embeddings, features = embed(experiment, dataset, reporter)
    spec, recall_of = experiment.config.evaluate, _measure(experiment, dataset)
    names = experiment.embedder.level_names
    levels = zip(names, experiment.embedder.levels(embeddings), strict=True)
    return Evaluation(
        recall_of(embeddings),
        recall_of(features) if spec.features else None,
        {name: recall_of(level) for name, level in levels} if len(names) > 1 else {},
        measure(spec.measures, embeddings, dataset.labels),
    )


def _measure(experiment: Experiment, dataset: ImageDataset) -> Callable[[Tensor], Recall]:
    """Return what measures embeddings of a data set as the config asks."""
    spec = experiment.config.evaluate
    return partial(recall_at_k, labels=dataset.labels, ks=spec.ks, backend=spec.backend)


def _run(
    config: Config, overrides: Sequence[str], folder: RunFolder, reporter: Reporter, test: bool
) -> dict[str, Any]:
    experiment = assemble(config, reporter)
    folder.write(CONFIG, configuration.dump(config).encode())
    reporter.say(f"run      {folder.path}")
    if overrides:
        reporter.say(f"changed  {shlex.join(overrides)}")
    _introduce(experiment, reporter)
    clock = Clock()
    chosen = None
    if config.train.iterations:
        chosen = _Training(experiment, folder, reporter, clock).run()
    if not test:
        return folder.finish_validation(_result(experiment, chosen, clock))
    try:
        began = time.perf_counter()
        found = evaluate(experiment, reporter)
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped during the evaluation") from None
    result = _result(experiment, chosen, clock, found.recall, time.perf_counter() - began)
    if folder.validated:
        result["selection"] = folder.candidate().get("selection")
    if found.of_features is not None:
        result["recall_of_features"] = _scores(found.of_features)
    if found.of_levels:
        result["recall_of_levels"] = {k: _scores(level) for k, level in found.of_levels.items()}
    if found.measured.values:
        result["measures"] = found.measured.values
    if found.measured.clustering:
        result["clustering"] = found.measured.clustering
    labels = np.asarray(experiment.test.labels, np.int64)
    return folder.finish(result, found.recall.ranks.numpy(), labels)


@dataclass
class Clock:
    """Seconds of training and images seen, over all the sittings of a run."""

    seconds: float = 0.0
    images: int = 0
    _since: float | None = None

    def start(self) -> None:
        """Go on counting seconds."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting seconds."""
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None


class _Training:
    """The outer loop of one sitting: from the last checkpoint, if there is one, to the end."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, reporter: Reporter, clock: Clock
    ) -> None:
        assert experiment.train is not None
        assert experiment.sampler is not None
        assert experiment.loss is not None
        self.experiment, self.folder, self.reporter = experiment, folder, reporter
        self.clock, self.config = clock, experiment.config
        self.train, self.sampler = experiment.train, experiment.sampler
        self.trainer = Trainer(
            self.config,
            experiment.embedder,
            experiment.loss,
            experiment.miner,
            experiment.precision,
        )
        self.fingerprint = _fingerprint(self.config, self.train)
        self.chosen = None
        if experiment.validation is not None:
            self.chosen = Chosen(keep=self.config.evaluate.every is not None)

    def run(self) -> Chosen | None:
        """Train to the last iteration; raise InterruptedRunError if a signal asked to stop.

        Returns:
            what held-out classes spoke for, which the network then is; None where there are none.
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
        )
        with (
            _stop_on_signal() as stopped,
            self.reporter.training(trainer.iteration, total) as report,
        ):
            if self.chosen is not None:
                report.measure = f"validation {report.measure}"
            self.clock.start()
            for batch in batches:
                trainer.step(batch)
                self.clock.images += len(batch.indices)
                report.advance()
                self._tell(report)
                if stopped() or self._due(self.config.train.checkpoint_every):
                    self._save(batch.state)
                if stopped():
                    break
            if stopped():  # at the end too: to measure takes long, and can be done later
                raise InterruptedRunError(f"saved at iteration {trainer.iteration} of {total}")
        self.clock.stop()
        if self.chosen is not None:
            self.chosen.restore(self.experiment.embedder)
            _tell_choice(self.chosen, self.reporter)
            if self.chosen.keep:
                source = str(self.folder.path / CONFIG)
                again = on_all_classes(self.config, source, self.chosen.iteration)
                self.reporter.say(f"to train it on all training classes: {again}")
        return self.chosen

    def _due(self, every: int) -> bool:
        done = self.trainer.iteration
        return done % every == 0 or done == self.config.train.iterations

    def _resume(self) -> None:
        state = self.folder.network(self.config)
        if state is not None:
            try:
                self._go_on_from(state)
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"{self.folder.path}: the checkpoint is not one of this run "
                    f"({type(error).__name__}); start again with --restart"
                ) from error
            self.reporter.say(f"resumed  from iteration {self.trainer.iteration}")
        self.folder.rewind(self.trainer.iteration)

    def _go_on_from(self, state: dict[str, Any]) -> None:
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
        if self.experiment.device.type == "cpu":
            _take_threads(state.get("threads"), self.reporter)
        self.trainer.load_state_dict(state)
        self.sampler.load_state_dict(state["sampler"])
        seconds, images = state["clock"]
        self.clock.seconds, self.clock.images = float(seconds), int(images)
        if self.chosen is not None:
            self.chosen.load_state_dict(state["chosen"])

    def _save(self, sampler_state: dict[str, Any]) -> None:
        self.trainer.check()
        self.trainer.check_weights()
        self.clock.stop()
        state = {
            **self.trainer.state_dict(sampler_state),
            "run": _identity.of_run(self.config),
            "threads": torch.get_num_threads(),
            "fingerprint": self.fingerprint,
            "clock": [self.clock.seconds, self.clock.images],
        }
        if self.chosen is not None:
            state["chosen"] = self.chosen.state_dict()
            if self.chosen.keep and self.trainer.iteration == self.config.train.iterations:
                # Whoever takes the network from here shall have the one that is tested.
                state["embedder"] = state["chosen"].pop("weights")
        self.folder.save_checkpoint(state)
        self.clock.start()

    def _tell(self, report: TrainingReport) -> None:
        """Write and show the loss, and Recall@K, whenever the config asks for them."""
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
            self.folder.append(record | ({"loss_of_levels": levels} if len(levels) > 1 else {}))
            report.show(trainer.iteration, loss=sum(levels))
        if self._measures():
            self.clock.stop()
            recall = self._recall()
            key = "recall" if self.chosen is None else "recall_of_validation"
            self.folder.append({"iteration": trainer.iteration, key: _scores(recall)})
            if self.chosen is not None:
                self.chosen.offer(trainer.iteration, recall, self.experiment.embedder)
            report.show(trainer.iteration, recall=recall[min(recall)])
            self.clock.start()

    def _logs(self) -> bool:
        """Whether the loss is due: often at first, so that a slow run shows whether it learns."""
        every = self.config.train.log_every
        return self._due(every) or self.trainer.iteration in _LOGGED_AT_FIRST

    def _recall(self) -> Recall:
        """Measure the embedding alone; features below it and single levels count at the end."""
        held_out = self.experiment.validation
        dataset = self.experiment.test if held_out is None else held_out
        embeddings, _ = embed(self.experiment, dataset, self.reporter)
        return _measure(self.experiment, dataset)(embeddings)

    def _measures(self) -> bool:
        """Whether Recall@K is due; at the end that of the test classes comes after training."""
        every, done = self.config.evaluate.every, self.trainer.iteration
        if done == self.config.train.iterations:
            return self.chosen is not None
        return every is not None and done % every == 0


def _result(
    experiment: Experiment,
    chosen: Chosen | None,
    clock: Clock,
    recall: Recall | None = None,
    evaluation_seconds: float = 0.0,
) -> dict[str, Any]:
    """Return what is to be kept of a run; without Recall@K of the test classes if not measured."""
    config, test = experiment.config, experiment.test
    measured: dict[str, Any] = {}
    if recall is not None:
        counts = {"queries": recall.queries, "unmatched": recall.unmatched}
        measured = {"recall": _scores(recall), **counts}
    return {
        "run": config.run_name(),
        "config": config.name,
        "digest": config.digest(),
        "seed": config.seed,
        "dataset": {
            "name": config.dataset.name,
            "folder": _folder_name(config),
            "fingerprint": _fingerprint(config, test),
            "classes": len(test.class_names),
            "images": len(test),
        },
        "loss": config.loss.name if config.loss and config.train.iterations else None,
        "backbone": config.model.backbone.name,
        "embedding_size": experiment.embedder.embedding_size,
        **measured,
        "settings": config.settings(),
        "iterate": "best" if chosen and chosen.keep else "last",
        "iteration": chosen.iteration if chosen else config.train.iterations,
        "iterations": config.train.iterations,
        "validation": _validation(experiment, chosen) if chosen else None,
        "paper": config.paper.model_dump(mode="json") if config.paper else None,
        "seconds": {
            "training": round(clock.seconds, 3),
            "evaluation": round(evaluation_seconds, 3),
        },
        "images_per_second": round(clock.images / clock.seconds, 1) if clock.seconds else None,
        "precision": experiment.precision,
        "plugins": plugins_of(config),
        "versions": environment.versions(),
        "hardware": environment.hardware(experiment.device),
        "git": environment.git_state(),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _validation(experiment: Experiment, chosen: Chosen) -> dict[str, Any]:
    """Return on what an iterate was chosen, and how it did there."""
    held = experiment.validation
    assert held is not None
    return {
        "share": experiment.config.evaluate.validation,
        "classes": len(held.class_names),
        "images": len(held),
        "recall": _scores(chosen.recall),
    }


def _tell_choice(chosen: Chosen, reporter: Reporter) -> None:
    k = min(chosen.recall)
    score = f"validation R@{k} {100 * chosen.recall[k]:.2f}"
    reporter.say(f"{'chosen' if chosen.keep else 'last':<8} iteration {chosen.iteration}, {score}")


@contextmanager
def _threads_as_before() -> Iterator[None]:
    """Leave PyTorch, when the run has ended, the threads that it had before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def _take_threads(wanted: int | None, reporter: Reporter) -> None:
    """Compute with as many threads as the run had: sums in another order are other numbers."""
    given = torch.get_num_threads()
    if wanted is not None and not (isinstance(wanted, int) and 1 <= wanted <= _MOST_THREADS):
        raise ValueError("no number of threads")
    if wanted is not None and wanted != given:
        torch.set_num_threads(wanted)
        reporter.say(f"threads  {wanted}, with which the run began, instead of {given}")


def _scores(recall: Mapping[int, float]) -> dict[str, float]:
    return {str(k): score for k, score in recall.items()}


def _folder_name(config: Config) -> str:
    """Return the last part of the folder that the images are from; empty where none is given."""
    root = config.dataset.arguments.get("root")
    return Path(root).expanduser().resolve().name if isinstance(root, str) else ""


def _introduce(experiment: Experiment, reporter: Reporter) -> None:
    """Say what is about to be done."""
    config, embedder = experiment.config, experiment.embedder
    sets = {
        "train": experiment.train,
        "held out": experiment.validation,
        "test": experiment.test,
    }
    for split, data in sets.items():
        if data is not None:
            sizes = f"{len(data.class_names):,} classes, {len(data):,} images"
            reporter.say(f"{split:<8} {config.dataset.name}: {sizes}")
    alone = int((np.unique(experiment.test.labels, return_counts=True)[1] == 1).sum())
    if alone:
        of = f"{alone:,} of {len(experiment.test):,} test images"
        reporter.say(f"alone    {of} have no other of their class, and score 0")
    layout = getattr(experiment.test, "layout", None)
    if layout is not None:
        reporter.say(f"data     {layout}, in {getattr(experiment.test, 'folder', None)}")
    count = sum(p.numel() for p in embedder.parameters()) / 1e6
    size = embedder.embedding_size
    reporter.say(f"model    {config.model.backbone.name}, {size}-d, {count:.2f} M parameters")
    for what, spec in _of_training(config):
        reporter.say(f"{what:<8} {spec}")
    reporter.say(f"seed     {config.seed}")
    reporter.say(f"device   {environment.device_name(experiment.device)}, {experiment.precision}")


def decoded(
    config: Config, datasets: Sequence[ImageDataset], reporter: Reporter
) -> Sequence[ImageDataset]:
    """Return data sets, their images decoded once and kept if the config wants that."""
    side = config.images.resize
    if not config.images.cache or side is None:
        return datasets
    return decoded_once(datasets, side, workers=config.train.workers, reporter=reporter)


def _of_training(config: Config) -> Iterator[tuple[str, str]]:
    """Yield how the network is trained, in words."""
    if not config.train.iterations:
        yield "training", "none; the network is evaluated as it is"
        return
    for what in ("loss", "miner", "sampler"):
        yield what, _in_words(getattr(config, what))
    how = f"{_in_words(config.optimizer)}, {_in_words(config.schedule)}"
    yield "training", f"{config.train.iterations:,} iterations, {how}"


def _in_words(spec: BaseModel | None) -> str:
    """Return a component and its arguments, or one of the schema and what it was given."""
    if spec is None:
        return "none"
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    arguments = [f"{key}={as_setting(numbers_alike(value))}" for key, value in given.items()]
    return f"{spec.model_dump()['name']}" + (f"({', '.join(arguments)})" if arguments else "")


def build_dataset(config: Config, split: Split) -> ImageDataset:
    """Return a split of a config's data set; raise a UserError if there is nothing in it."""
    dataset: ImageDataset = _build("datasets", config.dataset, {"split": split})
    with blaming(f"{config.dataset.name}, asked for its {split} split,"):
        _refuse(config.dataset, _contracts.dataset(dataset), f"the {split} split ")
        empty = not len(dataset)
    if empty:
        raise UserError(f"{config.dataset.name}: the {split} split has no images")
    return dataset


def _fingerprint(config: Config, dataset: ImageDataset) -> str:
    """Return the fingerprint of a split; raise a UserError if it is none."""
    with blaming(f"the fingerprint of {config.dataset.name}"):
        found: str = dataset.fingerprint()
    _refuse(config.dataset, _contracts.fingerprint(found))
    return found


def _refuse(spec: Component, fault: str | None, part: str = "") -> None:
    """Raise what was found wrong with a component, if anything was."""
    if fault:
        raise UserError(f"{spec.name}: {part or 'it '}{fault}")


def _build(kind: registry.Kind, spec: Component, runtime: dict[str, Any]) -> Any:
    for argument in sorted(configuration.set_by_run(kind) & set(spec.arguments)):
        raise UserError(f"{spec.name}.{argument}: {configuration.SET_BY_RUN}")
    return registry.assemble(kind, spec.name, spec.arguments, runtime)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _default_workers(device: torch.device, dataset: ImageDataset) -> int:
    """Return 0 where batches are cut from memory or the CPU trains anyway, else up to 8."""
    if device.type == "cpu":
        return 0
    if isinstance(dataset, CachedImages):  # nothing to decode, but the disk to wait for
        return min(2, environment.cores())
    in_memory = isinstance(getattr(dataset, "images", None), Tensor)
    return 0 if in_memory else min(8, environment.cores())


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM came; a second one is not held back."""
    asked = threading.Event()
    with _signals.heard_by(asked.set, once=True):
        yield asked.is_set
