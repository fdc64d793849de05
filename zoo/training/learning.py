"""What only training needs: sampler, loss, miner, and the schedules of their arguments."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo import registry
from zoo.base import ImageDataset
from zoo.config.build import build, refuse
from zoo.config.schedules import has_schedules
from zoo.config.schema import ComponentSpec, Config
from zoo.data.pipeline import centre_crops, first_batch
from zoo.registry import Kind, contracts, rehearsal
from zoo.support.randomness import unchanged_randomness
from zoo.training.scheduled import Scheduled

if TYPE_CHECKING:
    from zoo.training.experiment import Experiment


def add_training(experiment: Experiment, train: ImageDataset) -> None:
    """Add the parts of an experiment that only training needs, and try them once."""
    config = experiment.config
    assert config.loss is not None
    assert config.sampler is not None
    experiment.train = train
    batches = {
        "labels": np.asarray(train.labels),
        "seed": config.seed,
        "embed": partial(_for_sampler, experiment),
    }
    experiment.sampler = build("samplers", config.sampler, batches)
    refuse(config.sampler, contracts.sampler(experiment.sampler))
    losses = [build("losses", config.loss, sizes) for sizes in _sizes_of_losses(experiment)]
    refuse(config.loss, contracts.module(losses[0]))
    rehearsal.check_call(losses[0], config.loss.name, config.miner is not None)
    experiment.loss = (losses[0] if len(losses) == 1 else nn.ModuleList(losses)).to(
        experiment.device
    )
    check_batch = getattr(losses[0], "check_batch", None)
    batch_size = getattr(experiment.sampler, "batch_size", None)
    if check_batch is not None and batch_size is not None:
        check_batch(batch_size, _sizes_of_losses(experiment)[0]["embedding_size"])
    if config.miner is not None:
        miner = build("miners", config.miner, {})
        refuse(config.miner, contracts.module(miner))
        experiment.miner = miner.to(experiment.device)
    _rehearse(experiment)
    experiment.scheduled = _schedules(
        config, losses, _sizes_of_losses(experiment), experiment.miner
    )


def _schedules(
    config: Config,
    losses: Sequence[nn.Module],
    sizes: Sequence[dict[str, Any]],
    miner: nn.Module | None,
) -> list[Scheduled]:
    """Return the losses and the miner whose arguments change, each able to be changed."""
    assert config.loss is not None
    parts: list[tuple[Kind, ComponentSpec, nn.Module, dict[str, Any]]] = [
        ("losses", config.loss, *of_level) for of_level in zip(losses, sizes, strict=True)
    ]
    if config.miner is not None and miner is not None:
        parts.append(("miners", config.miner, miner, {}))
    return [
        Scheduled(kind, spec, component, partial(_build_with, kind, spec.name, own))
        for kind, spec, component, own in parts
        if has_schedules(spec.arguments)
    ]


def _build_with(
    kind: Kind, name: str, sizes: dict[str, Any], arguments: dict[str, Any]
) -> nn.Module:
    made: nn.Module = registry.assemble(kind, name, arguments, sizes)
    return made


def _sizes_of_losses(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the sizes that each loss is built for: one for each level, or one for all levels."""
    config, train = experiment.config, experiment.train
    assert config.loss is not None
    assert train is not None
    of_data = {
        "num_classes": len(train.class_names),
        "num_images": len(train),
        "space": experiment.embedder.space,
    }
    levels = experiment.embedder.level_sizes
    if any(p.name == "level_sizes" for p in registry.parameters("losses", config.loss.name)):
        return [{**of_data, "embedding_size": sum(levels), "level_sizes": levels}]
    return [{**of_data, "embedding_size": size} for size in levels]


def _rehearse(experiment: Experiment) -> None:
    """Try sampler, miner and loss once; uses copies built alike, so that these do not change."""
    config, train = experiment.config, experiment.train
    assert config.loss is not None
    assert train is not None
    labels = np.asarray(train.labels, np.int64)
    sizes = _sizes_of_losses(experiment)[0]
    with unchanged_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indices = _first_batch(experiment, labels)
        loss = build("losses", config.loss, sizes).to(experiment.device)
        miner = None
        if config.miner is not None:
            miner = build("miners", config.miner, {}).to(experiment.device)
        names = (config.loss.name, config.miner.name if config.miner else "")
        everything, ids = torch.from_numpy(labels), torch.tensor(indices)
        of_batch, ids, everything = (
            part.to(experiment.device) for part in (everything[ids], ids, everything)
        )
        trial = rehearsal.Rehearsal(sizes["embedding_size"], of_batch, ids, everything, names)
        rehearsal.rehearse(loss, miner, trial)
        for scheduled in _schedules(config, [loss], [sizes], miner):
            scheduled.rehearse(partial(rehearsal.output, scheduled.kind, trial))


def _first_batch(experiment: Experiment, labels: NDArray[np.int64]) -> list[int]:
    """Return the indices of a first batch, or some others if the sampler needs the network."""
    config = experiment.config
    assert config.sampler is not None
    if getattr(experiment.sampler, "draws_late", False):
        return [int(i) for i in np.argsort(labels, kind="stable")[:64]]
    batches = {"labels": labels, "seed": config.seed, "embed": partial(_for_sampler, experiment)}
    sampler = build("samplers", config.sampler, batches)
    return first_batch(sampler, len(labels))


def embed_some(experiment: Experiment, ids: Sequence[int]) -> Tensor:
    """Return the embeddings of some training images, float32 (n, d), in all processes of a run."""
    assert experiment.train is not None
    embedder, size = experiment.embedder.eval(), experiment.config.evaluate.batch_size
    ranks = experiment.ranks
    mine = ids[ranks.share(len(ids))]
    parts = [mine[i : i + size] for i in range(0, len(mine), size)]
    with torch.no_grad():  # a loss may keep them, so not torch.inference_mode
        crops = (centre_crops(experiment.train, experiment.config.images, part) for part in parts)
        found = [embedder(images.to(experiment.device)).float() for images in crops]
        nothing = torch.empty(0, embedder.embedding_size, device=experiment.device)
        return ranks.gather(torch.cat([nothing, *found]), ranks.counts(len(ids)))


def _for_sampler(experiment: Experiment, ids: list[int]) -> NDArray[np.float32]:
    """Return the embeddings of some training images, as they are compared in a search."""
    combined = experiment.embedder.combined(embed_some(experiment, ids))
    as_array: NDArray[np.float32] = combined.cpu().numpy()
    return as_array
