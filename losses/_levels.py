"""Shared by losses of several learners, each of which has a part of the embedding."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._inner import require_any_size

MIXES = "a rotation of the whole embedding mixes the parts of it that belong to different learners"


class OfLevels:
    """Mixed into a loss that takes all levels of an embedding and cuts them itself.

    The levels are those of the network, or the parts that ``model.slices`` of a config cuts an
    embedding into. Each is the embedding of one learner.

    Args:
        level_sizes: the size of each level; their sum is the size of the embedding.
    """

    gallery: ClassVar[bool] = False
    mined: ClassVar[bool] = False
    expected_failures: ClassVar[Mapping[str, str]] = {"check_rotation": MIXES}

    def __init__(self, level_sizes: Sequence[int], *more: Any, **named: Any) -> None:
        super().__init__(*more, **named)
        if not level_sizes or min(level_sizes) < 1:
            raise UserError(
                f"level_sizes must be one or more sizes of at least 1, not {list(level_sizes)}"
            )
        self.level_sizes = tuple(level_sizes)

    def levels(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return the embeddings (N, d_m) of each learner.

        Raises:
            UserError: the embeddings have another size.
        """
        size = sum(self.level_sizes)
        if embeddings.shape[1] != size:
            raise UserError(
                f"embeddings have {embeddings.shape[1]} numbers, but this loss was built for "
                f"{size}, in levels of {', '.join(map(str, self.level_sizes))}; build it anew"
            )
        return torch.split(embeddings, list(self.level_sizes), dim=1)


def losses_of(loss: nn.Module, level_sizes: Sequence[int]) -> nn.ModuleList:
    """Return a loss for each level: the given one, and copies of it.

    Raises:
        UserError: it has weights of the size of the whole embedding.
    """
    whole = sum(level_sizes)
    weights = [p.shape for p in loss.parameters() if p.ndim > 1]
    if len(level_sizes) > 1 and any(shape[-1] == whole for shape in weights):
        raise UserError(
            f"{type(loss).__name__} has weights for embeddings of {whole} numbers, which are here "
            f"cut into levels of {', '.join(map(str, level_sizes))}; give a loss without weights, "
            "or, in Python, one that was built for the size of a level"
        )
    if len(level_sizes) > 1:
        require_any_size(loss, level_sizes, "a loss of several levels")
    return nn.ModuleList(copy.deepcopy(loss) if i else loss for i in range(len(level_sizes)))
