"""How long each row of the paper's Table 3 will take, from steps that were measured here."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import torch
from _steps import embedding_rate, random_batch, seconds_of, trainer_of

from zoo import config
from zoo.config import loading
from zoo.config.build import build
from zoo.config.schema import Config
from zoo.datasets.cars196 import Cars196
from zoo.datasets.cub200 import Cub200
from zoo.datasets.sop import Sop
from zoo.training.experiment import build_embedder

DATASETS = {"cars": Cars196, "cub": Cub200, "sop": Sop}

RANDOM = "model.backbone.weights=null"
STILL = "optimizer.lr=1e-12"  # a network with random weights stays as it is, and so finite


class Measured(NamedTuple):
    """What the other parts of the benchmark found."""

    loop_to_batch: float  # time of a step in the loop, relative to the same on one batch
    seconds_of_recall: float
    items: int
    dim: int


class Size(NamedTuple):
    """Of the images, and of a measurement."""

    settings: tuple[str, ...]
    calls: int
    warm_up: int
    at_once: int  # images in evaluation


def rows() -> list[str]:
    """Return the names of the configs of the table."""
    names = [name for name in loading.shipped() if "/" not in name]  # no ablation/...
    return [name for name in names if name.rpartition("_")[2] in DATASETS]


def hours(name: str, measured: Measured, size: Size, device: torch.device) -> dict[str, Any]:
    """Return the hours of one run, and of which parts they are the sum."""
    dataset = DATASETS[name.rpartition("_")[2]]
    is_trained = config.load(name, [RANDOM]).train.iterations > 0
    one = config.load(name, [RANDOM, *([STILL] if is_trained else []), *size.settings])
    side = one.images.crop or one.images.resize or 0
    test = dataset.table["test"].images
    parts = {"training": 0.0, "sampler": 0.0}
    step, batch, asked = 0.0, 0, 0.0
    if is_trained:
        labels, asked = batches(one, dataset.table["train"])
        batch = len(labels)
        trainer = trainer_of(one, dataset.table["train"].classes, device)
        embedder = trainer.embedder
        on_device = random_batch(labels, side, device)
        step = seconds_of(lambda: trainer.step(on_device), device, size.calls, size.warm_up)
        parts["training"] = step * measured.loop_to_batch * one.train.iterations
    else:
        embedder = build_embedder(one, device)
    rate = embedding_rate(embedder, side, device, size.at_once, size.calls, size.warm_up)
    parts["sampler"] = asked / rate * one.train.iterations
    parts["embedding"] = test / rate
    pairs = (test / measured.items) ** 2 * embedder.embedding_size / measured.dim
    parts["recall"] = pairs * measured.seconds_of_recall
    gc.collect()  # networks have cycles, and a device's memory is not the collector's concern
    return {
        "hours": sum(parts.values()) / 3600,
        "seconds": parts,
        "seconds_of_a_step": step,
        "batch": batch,
        "iterations": one.train.iterations,
        "embedded_for_a_batch": asked,
        "embedded_per_second": rate,
    }


def batches(one: Config, train: Any) -> tuple[torch.Tensor, float]:
    """Return the labels of a batch, and how many images the sampler embeds for one."""
    assert one.sampler is not None
    labels = np.sort(np.arange(train.images) % train.classes)
    asked = []

    def embed(indices: Any) -> Any:
        asked.append(len(indices))
        return np.random.default_rng(0).standard_normal((len(indices), 8)).astype(np.float32)

    runtime = {"labels": labels, "seed": 0, "embed": embed}
    drawn = iter(build("samplers", one.sampler, runtime))
    indices = [next(drawn) for _ in range(3)][-1]
    return torch.from_numpy(labels[list(indices)]), sum(asked) / 3
