"""Several networks side by side, each of which gives levels of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from zoo.base import Preprocess
from zoo.errors import UserError


class Ensemble(nn.Module):
    """Networks that share nothing but their images: their levels are put one after another.

    Each is an independent learner, as in deep randomized ensembles, whose loss ``dreml`` gives each
    a task of its own. Networks that a list names start from random weights of their own; copies of
    one start alike, as pretrained ones do.

    Args:
        backbones: the networks. All must want the same input.
        copies: how often each of them is repeated.

    Attributes:
        feature_dims: those of all networks.
        preprocess: that of all of them.

    Raises:
        UserError: no networks, or they want different input.

    Source: Xuan, Souvenir, Pless, "Deep Randomized Ensembles for Metric Learning", ECCV 2018,
    arXiv:1808.04469.
    """

    check_arguments: ClassVar[dict[str, Any]] = {
        "backbones": [{"name": "convnet", "width": 2}, {"name": "convnet", "width": 1}],
    }

    def __init__(self, backbones: Sequence[nn.Module], copies: int = 1) -> None:
        super().__init__()
        if not backbones or copies < 1:
            raise UserError(
                f"ensemble: give one or more backbones and copies of 1 or more, not "
                f"{len(backbones)} and {copies}"
            )
        inner: list[Any] = list(backbones)
        wanted: list[Preprocess] = [one.preprocess for one in inner]
        if any(other != wanted[0] for other in wanted):
            different = next(other for other in wanted if other != wanted[0])
            raise UserError(
                "ensemble: its backbones must want the same input, and one wants "
                f"{wanted[0]}, another {different}"
            )
        self.preprocess = wanted[0]
        every = [copy.deepcopy(one) if i else one for one in inner for i in range(copies)]
        self.backbones = nn.ModuleList(every)
        self.feature_dims = tuple(dim for one in every for dim in one.feature_dims)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the feature maps of all networks, in their order."""
        return tuple(level for backbone in self.backbones for level in backbone(images))
