"""Steps of training on one batch that is on the device, and how long they take there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.config.schema import Config
from zoo.data.pipeline import Batch
from zoo.network.embedder import Embedder
from zoo.training.device import choose_precision
from zoo.training.experiment import build_embedder
from zoo.training.step import Trainer

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def wait(device: torch.device) -> None:
    """Return when the device has finished all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(
    task: Callable[[], Any], device: torch.device, calls: int, warm_up: int = 0
) -> float:
    """Return the seconds of one call: the mean of several, between which nothing waits."""
    for _ in range(warm_up):
        task()
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        task()
    wait(device)
    return (time.perf_counter() - start) / calls


def rounds_of(
    tasks: dict[str, Callable[[], Any]], device: torch.device, calls: int, rounds: int, warm_up: int
) -> dict[str, list[float]]:
    """Return the seconds of a call of each task, in each round; they take turns."""
    for task in tasks.values():
        seconds_of(task, device, warm_up)
    turns = [
        {n: seconds_of(task, device, calls) for n, task in tasks.items()} for _ in range(rounds)
    ]
    return {name: [turn[name] for turn in turns] for name in tasks}


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def random_batch(labels: Tensor, side: int, device: torch.device) -> Batch:
    """Return a batch of random pixels with these labels, on the device."""
    count = len(labels)
    pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, device=device)
    return Batch(0, list(range(count)), {}, slice(0, count), pixels, labels.to(device))


def trainer_of(config: Config, classes: int, device: torch.device) -> Trainer:
    """Return the trainer of a config, without its data set and its pretrained weights."""
    assert config.loss is not None
    embedder = build_embedder(config, device)
    losses = [
        registry.assemble(
            "losses",
            config.loss.name,
            config.loss.arguments,
            {"num_classes": classes, "embedding_size": size},
        ).to(device)
        for size in embedder.level_sizes
    ]
    loss = losses[0] if len(losses) == 1 else nn.ModuleList(losses)
    return Trainer(config, embedder, loss, None, choose_precision(config.train.precision, device))


def plain_step(
    embedder: Embedder, batch: Batch, precision: str, loss: nn.Module | None
) -> Callable[[], None]:
    """Return a step in plain torch; without a loss, the gradient is that of the embeddings' sum.

    The learning rate is 0, so that the weights, which are random, stay finite.
    """
    device = batch.images.device
    optimizer = torch.optim.SGD(
        [p for p in embedder.parameters() if p.requires_grad], lr=0.0, momentum=0.8
    )
    dtype = _DTYPES.get(precision)

    def step() -> None:
        embedder.train()
        with torch.autocast(device.type, dtype) if dtype else nullcontext():
            embeddings = embedder(batch.images)
        embeddings = embeddings.float()
        value = embeddings.sum() if loss is None else loss(embeddings, batch.labels)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    return step


def embedding_rate(
    embedder: Embedder, side: int, device: torch.device, count: int, calls: int, warm_up: int
) -> float:
    """Return how many images per second are embedded as in an evaluation, ``count`` at a time."""
    batch = random_batch(torch.zeros(count, dtype=torch.int64), side, device)
    embedder.eval()
    with torch.inference_mode():
        return count / seconds_of(lambda: embedder(batch.images), device, calls, warm_up)
