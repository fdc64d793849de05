"""The optimiser with its parameter groups, and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from zoo.config.schema import Optimizer, Schedule
from zoo.network.embedder import Embedder
from zoo.registry import hooks

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_NOT_TORCHS = {"name", "lr", "head_multiplier", "loss_multiplier"}


def make_optimizer(
    spec: Optimizer, embedder: Embedder, loss: nn.Module, loss_name: str = "the loss"
) -> torch.optim.Optimizer:
    """Build the optimiser: the trunk, the new layers and the loss each have their own group.

    A loss may have several, see :meth:`zoo.base.LossHooks.parameter_groups`.
    """
    shares = [
        ("trunk", list(embedder.trunk_parameters()), 1.0),
        ("head", list(embedder.head_parameters()), spec.head_multiplier),
    ]
    shares += [
        ("loss", parameters, spec.loss_multiplier * factor)
        for parameters, factor in hooks.parameter_groups(loss, loss_name)
    ]
    groups = [
        {"params": parameters, "lr": spec.lr * multiplier, "name": name}
        for name, parameters, multiplier in shares
        if parameters
    ]
    return _OPTIMIZERS[spec.name](groups, **spec.model_dump(exclude=_NOT_TORCHS))


def learning_rate_factor(schedule: Schedule, iterations: int) -> Callable[[int], float]:
    """Return the factor of the learning rate at iteration t, from 0."""

    def decayed(t: int) -> float:
        done = t / max(1, schedule.over or iterations)
        if schedule.name == "cosine":
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2
        if schedule.name == "linear":
            return 1 + (schedule.final - 1) * done
        if schedule.name == "step":
            return schedule.gamma ** (t // schedule.every)
        return 1.0

    return lambda t: decayed(t) * min(1.0, (t + 1) / (schedule.warmup + 1))
