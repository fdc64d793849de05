"""From a config to the objects of an experiment: data, network, loss, miner, sampler."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.filesize import decimal
from torch import Tensor, nn

from zoo.base import BatchSampler, ImageDataset, Split
from zoo.config.build import build, refuse
from zoo.config.schema import Config
from zoo.data.cache import CachedImages
from zoo.data.holdout import hold_out
from zoo.data.pipeline import centre_crops, first_batch
from zoo.data.splits import build_dataset, decoded
from zoo.errors import UserError
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.registry import contracts, rehearsal
from zoo.support import environment
from zoo.support.randomness import unchanged_randomness
from zoo.training.batchnorm import synchronise
from zoo.training.device import choose_device, choose_precision
from zoo.training.embedder import Embedder


@dataclass
class Experiment:
    """The objects of a config; those of training are None at 0 iterations.

    ``validation`` has the classes held out from ``train``; None if there are none.
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
    ranks: Ranks = field(default_factory=Ranks)


def assemble(
    config: Config, reporter: Reporter | None = None, ranks: Ranks | None = None
) -> Experiment:
    """Build the components of a config, in a fixed order, so that the seed determines them.

    Images may be cached first, which takes a while: the reporter shows it.
    """
    ranks = ranks or Ranks()
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
    )
    _check_shares(experiment)
    if train is not None:
        _add_training(experiment, train)
    _check_memory(experiment)
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


def _check_memory(experiment: Experiment) -> None:
    """Refuse batches whose pixels alone, as bytes and as the network's input, exceed the memory."""
    config, room = experiment.config, environment.memory()
    if room is None:
        return
    # Test images are read only after training, so a training image represents them.
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
    """Return the network of a config before training, which its seed determines."""
    _seed(config.seed)
    model = config.model
    backbone = build("backbones", model.backbone, {})
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
    experiment.sampler = build("samplers", config.sampler, batches)
    refuse(config.sampler, contracts.sampler(experiment.sampler))
    losses = [
        build("losses", config.loss, {"num_classes": len(train.class_names), "embedding_size": d})
        for d in levels
    ]
    refuse(config.loss, contracts.module(losses[0]))
    rehearsal.check_call(losses[0], config.loss.name, config.miner is not None)
    experiment.loss = (losses[0] if len(losses) == 1 else nn.ModuleList(losses)).to(
        experiment.device
    )
    check_batch = getattr(losses[0], "check_batch", None)
    batch_size = getattr(experiment.sampler, "batch_size", None)
    if check_batch is not None and batch_size is not None:
        check_batch(batch_size, levels[0])
    if config.miner is not None:
        miner = build("miners", config.miner, {})
        refuse(config.miner, contracts.module(miner))
        experiment.miner = miner.to(experiment.device)
    _rehearse(experiment, levels[0])


def _rehearse(experiment: Experiment, size: int) -> None:
    """Try sampler, miner and loss once; uses copies built alike, so that these do not change."""
    config, train = experiment.config, experiment.train
    assert config.loss is not None
    assert train is not None
    labels = np.asarray(train.labels, np.int64)
    sizes = {"num_classes": len(train.class_names), "embedding_size": size}
    with unchanged_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indices = _first_batch(experiment, labels)
        loss = build("losses", config.loss, sizes).to(experiment.device)
        miner = config.miner and build("miners", config.miner, {}).to(experiment.device)
        of_batch = torch.from_numpy(labels[indices]).to(experiment.device)
        names = (config.loss.name, config.miner.name if config.miner else "")
        rehearsal.rehearse(loss, miner, size, of_batch, names)


def _first_batch(experiment: Experiment, labels: NDArray[np.int64]) -> list[int]:
    """Return the indices of a first batch, or some others if the sampler needs the network."""
    config = experiment.config
    assert config.sampler is not None
    if getattr(experiment.sampler, "draws_late", False):
        return [int(i) for i in np.argsort(labels, kind="stable")[:64]]
    batches = {"labels": labels, "seed": config.seed, "embed": partial(_embed_some, experiment)}
    sampler = build("samplers", config.sampler, batches)
    return first_batch(sampler, len(labels))


def _embed_some(experiment: Experiment, indices: list[int]) -> NDArray[np.float32]:
    """Return the embeddings of some training images, for a sampler."""
    assert experiment.train is not None
    embedder, size = experiment.embedder.eval(), experiment.config.evaluate.batch_size
    ranks = experiment.ranks
    mine = indices[ranks.share(len(indices))]
    parts = [mine[i : i + size] for i in range(0, len(mine), size)]
    with torch.inference_mode():
        crops = (centre_crops(experiment.train, experiment.config.images, part) for part in parts)
        on_device = (images.to(experiment.device) for images in crops)
        found = [embedder.combined(embedder(images)).float() for images in on_device]
        nothing = torch.empty(0, embedder.embedding_size, device=experiment.device)
        embeddings = ranks.gather(torch.cat([nothing, *found]), ranks.counts(len(indices)))
    as_array: NDArray[np.float32] = embeddings.cpu().numpy()
    return as_array


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
