"""From a config to the objects of an experiment: data, network, loss, miner, sampler."""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from rich.filesize import decimal
from torch import Tensor, nn

from zoo.base import BatchSampler, ImageDataset, Split
from zoo.config.build import build
from zoo.config.schema import Config
from zoo.data.cache import CachedImages
from zoo.data.holdout import hold_out
from zoo.data.pipeline import centre_crops
from zoo.data.splits import build_dataset, decoded
from zoo.errors import UserError, blaming
from zoo.network.embedder import Embedder
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.registry import contracts
from zoo.runs.tracking import Tracking
from zoo.support import environment
from zoo.training.batchnorm import synchronise
from zoo.training.device import choose_device, choose_precision
from zoo.training.learning import add_training
from zoo.training.scheduled import Scheduled


@dataclass
class Experiment:
    """The objects of a config; those of training are None at 0 iterations.

    ``validation`` has the classes held out from ``train``; None if there are none. ``scheduled``
    are the losses and the miner whose arguments change.
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
    miner: nn.Module | None = None
    sampler: BatchSampler | None = None
    scheduled: list[Scheduled] = field(default_factory=list)
    ranks: Ranks = field(default_factory=Ranks)
    tracking: Tracking = field(default_factory=Tracking)


def assemble(
    config: Config, reporter: Reporter | None = None, ranks: Ranks | None = None
) -> Experiment:
    """Build the components of a config, in a fixed order, so that the seed determines them.

    Images may be cached first, which takes a while: the reporter shows it.
    """
    ranks = ranks or Ranks()
    tracking = Tracking.of(config) if ranks.first else Tracking()
    device = choose_device(config.device, ranks)
    precision = choose_precision(config.train.precision, device)
    splits: tuple[Split, ...] = ("test", "train") if config.train.iterations else ("test",)
    datasets = [build_dataset(config, split) for split in splits]
    _check_classes(config, datasets[0])
    if len(datasets) > 1 and (shared := contracts.splits(datasets[1], datasets[0])):
        warnings.warn(f"{config.dataset.name} {shared}", stacklevel=2)
    embedder = build_embedder(config, device)  # first, as it reports missing weights
    if config.train.iterations and not ranks.alone:
        synchronise(embedder, ranks, device, allowed=config.train.sync_batchnorm)
    test, *others = decoded(config, datasets, reporter or Reporter())
    train = others[0] if others else None
    validation = None
    if train is not None and config.evaluate.validation is not None:
        train, validation = hold_out(train, config.evaluate.validation, config.seed)
    workers = config.train.workers
    experiment = Experiment(
        config,
        device,
        precision,
        _default_workers(device, test) if workers is None else workers,
        test,
        embedder,
        validation=validation,
        ranks=ranks,
        tracking=tracking,
    )
    _check_shares(experiment)
    if train is not None:
        add_training(experiment, train)
    _check_images(experiment)
    return experiment


def _check_classes(config: Config, test: ImageDataset) -> None:
    """Refuse a test split in which every image is alone in its class."""
    labels = np.asarray(test.labels)
    if len(np.unique(labels)) == len(labels):
        raise UserError(
            f"{config.dataset.name}: the test split has one image per class, so that no image can "
            "be found by another and Recall@K is 0 for every network; use classes of two or more"
        )


def _check_shares(experiment: Experiment) -> None:
    """Refuse before training what several processes could not measure after it."""
    ranks = experiment.ranks
    backend = experiment.config.evaluate.backend
    if not ranks.alone and backend != "torch":
        raise UserError(
            f"evaluate.backend={backend} works with one process, and there are {ranks.size}; set "
            "evaluate.backend=torch, which finds the same ranks"
        )
    for dataset in (experiment.test, experiment.validation):
        if dataset is not None and len(dataset) < ranks.size:
            raise UserError(
                f"{len(dataset)} images cannot be divided among {ranks.size} processes; lower "
                "train.processes"
            )


def _check_images(experiment: Experiment) -> None:
    """Refuse images of a size that the network does not take, or that do not fit the memory."""
    # Test images are read only after training, so a training image represents them.
    looked_at = experiment.test if experiment.train is None else experiment.train
    planes, height, width = centre_crops(looked_at, experiment.config.images, [0])[0].shape
    check_size = getattr(experiment.embedder.backbone, "check_size", None)
    if check_size is not None:
        with blaming(f"{experiment.config.model.backbone.name}.check_size()"):
            check_size((height, width))
    _check_memory(experiment, planes, height, width)


def _check_memory(experiment: Experiment, planes: int, height: int, width: int) -> None:
    """Refuse batches whose pixels alone, as bytes and as the network's input, exceed the memory."""
    config, room = experiment.config, environment.memory()
    if room is None:
        return
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
    """Return the network of a config before training, which its seed determines."""
    _seed(config.seed)
    model = config.model
    backbone = build("backbones", model.backbone, {})
    embedder = Embedder(
        backbone,
        model.embedding_size,
        model.pooling,
        model.freeze,
        model.backbone.name,
        model.slices,
        build("spaces", model.space, {}) if model.space is not None else None,
        model.hidden,
        model.norm,
    )
    layout = torch.channels_last if config.train.channels_last else torch.contiguous_format
    on_device: Embedder = embedder.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    return on_device


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _default_workers(device: torch.device, dataset: ImageDataset) -> int:
    """Return 0 if batches are cropped in memory or the CPU trains anyway, else up to 8."""
    if device.type == "cpu":
        return 0
    cores = max(1, environment.cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if isinstance(dataset, CachedImages):  # nothing to decode, but the disk may be slow
        return min(2, cores)
    in_memory = isinstance(getattr(dataset, "images", None), Tensor)
    return 0 if in_memory else min(8, cores)
