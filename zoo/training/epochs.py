"""Lets the loss and the miner look at the training data between epochs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.registry import hooks
from zoo.training.experiment import Experiment
from zoo.training.learning import embed_some


class Epochs:
    """Calls :meth:`zoo.base.LossHooks.begin_epoch` before the first batch of each epoch.

    All processes of a run call it at the same time, as they share the embedding of the images.
    """

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.train is not None
        assert experiment.sampler is not None
        self._experiment = experiment
        self._hooked = [
            (module, level, name)
            for component, level, name in _parts(experiment)
            for module in hooks.of_epochs(component)
        ]
        self._number, self._next = 0, 0  # of the next epoch, and its first iteration
        self._labels = torch.from_numpy(np.array(experiment.train.labels, np.int64))
        self._labels = self._labels.to(experiment.device)

    def begin(self, iteration: int) -> None:
        """Call the hooks if an iteration, from 0, is the first of an epoch."""
        if not self._hooked or iteration < self._next:
            return
        for module, level, name in self._hooked:
            what = f"begin_epoch of {name}"
            with blaming(f"{what} before iteration {iteration + 1}"):
                embed = partial(self._embed, level)
                given = module.begin_epoch(self._number, self._labels.clone(), embed)
            if given is not None:
                self._regroup(given, what)
        assert self._experiment.sampler is not None
        self._number += 1
        self._next = iteration + max(1, len(self._experiment.sampler))

    def state_dict(self) -> list[int]:
        """Return the number of the next epoch and its first iteration."""
        return [self._number, self._next]

    def load_state_dict(self, state: list[int]) -> None:
        """Continue from a saved state."""
        self._number, self._next = state

    def _regroup(self, given: Any, what: str) -> None:
        groups = hooks.groups_of(given, len(self._labels), what)
        sampler = self._experiment.sampler
        regroup = getattr(sampler, "regroup", None)
        if regroup is None:
            assert self._experiment.config.sampler is not None
            raise UserError(
                f"{what} groups the training images, and {self._experiment.config.sampler.name} "
                "does not draw batches within groups; set sampler.name=grouped"
            )
        regroup(groups)

    def _embed(self, level: int | None, ids: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of training images, or one level of them, without a graph."""
        images = len(self._labels)
        chosen = range(images) if ids is None else hooks.checked_ids(ids, images)
        embeddings = embed_some(self._experiment, chosen)
        return embeddings if level is None else self._experiment.embedder.levels(embeddings)[level]


def _parts(experiment: Experiment) -> list[tuple[object, int | None, str]]:
    """Return the loss of each level, and the miner, with their names."""
    config, loss = experiment.config, experiment.loss
    assert config.loss is not None
    parts: list[tuple[object, int | None, str]] = []
    if isinstance(loss, nn.ModuleList):
        parts += [(of_level, level, config.loss.name) for level, of_level in enumerate(loss)]
    else:
        parts.append((loss, None, config.loss.name))
    if config.miner is not None:
        parts.append((experiment.miner, None, config.miner.name))
    return parts
