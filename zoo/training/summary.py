"""The lines printed before a run starts: data, network, loss, device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import BaseModel

from zoo import registry
from zoo.config.schema import Config, numbers_alike
from zoo.progress import Reporter
from zoo.registry.arguments import parameters_of
from zoo.support import environment
from zoo.support.values import as_setting
from zoo.training.experiment import Experiment


def introduce(experiment: Experiment, reporter: Reporter) -> None:
    """Print what the run is about to do."""
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
        reporter.say(f"alone    {of} are the only one of their class, and score 0")
    layout = getattr(experiment.test, "layout", None)
    if layout is not None:
        reporter.say(f"data     {layout}, in {getattr(experiment.test, 'folder', None)}")
    count = sum(p.numel() for p in embedder.parameters()) / 1e6
    size = embedder.embedding_size
    reporter.say(f"model    {config.model.backbone.name}, {size}-d, {count:.2f} M parameters")
    if config.model.space is not None:
        reporter.say(f"space    {_in_words(config.model.space)}{_of_loss(experiment)}")
    for what, spec in _of_training(config):
        reporter.say(f"{what:<8} {spec}")
    reporter.say(f"seed     {config.seed}")
    device = f"{environment.device_name(experiment.device)}, {experiment.precision}"
    several = f"{experiment.ranks.size} processes, each on " if experiment.ranks.size > 1 else ""
    reporter.say(f"device   {several}{device}")


def _of_loss(experiment: Experiment) -> str:
    """Return a note if the loss does not know the space in which images are compared."""
    loss = experiment.config.loss
    if loss is None or not experiment.config.train.iterations:
        return ""
    takes = any(p.name == "space" for p in parameters_of(registry.load("losses", loss.name)))
    return "" if takes else f"; {loss.name} does not use it"


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
    """Return a component or a section of the schema, with its arguments."""
    if spec is None:
        return "none"
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    arguments = [f"{key}={as_setting(numbers_alike(value))}" for key, value in given.items()]
    return f"{spec.model_dump()['name']}" + (f"({', '.join(arguments)})" if arguments else "")
