"""Learners that attend to different parts of one feature map (ABE)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import FAILURES, UserError, words_of

_SIDE = 224  # pixels of the image that shows how many channels a map has


class AttentionEnsemble(nn.Module):
    """A backbone whose feature map is masked in several ways, each of which gives a level.

    A network is cut into S, up to the module ``at``, and G, all after it. Each learner m has a mask
    A_m of the size of the map, between 0 and 1, and all share S and G::

        B_m(x) = G(S(x) * A_m(S(x)))

    The masks are made by a 1x1 convolution with ReLU, which the learners share, and one of their
    own with a sigmoid. With ``size``, G ends with the global mean and a linear layer, both shared
    too: give ``model.embedding_size=null``, so that no further layer follows. That is the paper's
    network; learners with a linear layer each differ without attending to different parts.

    Differs from the paper in the layers that make the masks, which are blocks of GoogLeNet there.

    Args:
        backbone: a backbone with one level that is a map.
        learners: how many masks; 8 in the paper.
        at: the path of the module after which the masks are applied, such as ``blocks.1`` of
            ``convnet`` or ``network.layer2`` of a ``torchvision.resnet50``. By default the last
            map, which leaves G only what follows it.
        size: of the embedding of each learner; None for their maps, with a linear layer each.

    Attributes:
        feature_dims: (size, ...) or the channels of the backbone's map, once for each learner.
        preprocess: that of the backbone.

    Raises:
        UserError: the backbone has several levels or no map, or no module of that path.

    Source: Kim, Goyal, Chawla, Lee, Kwon, "Attention-based Ensemble for Deep Metric Learning", ECCV
    2018, arXiv:1804.00382.
    """

    check_arguments: ClassVar[dict[str, Any]] = {
        "backbone": {"name": "convnet", "width": 2},
        "at": "blocks.1",
    }

    def __init__(
        self,
        backbone: nn.Module,
        learners: int = 8,
        at: str | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__()
        if learners < 1 or (size is not None and size < 1):
            raise UserError(f"abe: learners={learners} and size={size} must be 1 or more")
        inner: Any = backbone
        if len(inner.feature_dims) != 1:
            raise UserError(f"abe: the backbone must have one level, not {len(inner.feature_dims)}")
        self.learners = learners
        self.preprocess = inner.preprocess
        channels = inner.feature_dims[0]
        if at == "":
            raise UserError("abe: at must be the path of a module, or null for the last map")
        self.last = None if at else _Masked(nn.Identity(), channels, learners)
        if at:
            _insert(inner, at, learners)
        self.backbone = inner
        self.project = None
        if size is not None:
            self.project = nn.Linear(channels, size)
            nn.init.orthogonal_(self.project.weight, gain=max(1.0, channels / size) ** 0.5)
            nn.init.zeros_(self.project.bias)
        self.feature_dims = (size or channels,) * learners

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the map (N, C, H, W) of each learner, or its embedding (N, size)."""
        (features,) = self.backbone(images)
        if self.last is not None:
            if features.ndim != 4:
                raise UserError("abe: the backbone gives no map to mask; name a module in `at`")
            features = self.last(features)
        if self.project is not None:
            pooled = features.mean((2, 3)) if features.ndim == 4 else features
            features = self.project(pooled)
        # Not by chunk(): torch.export cannot follow it for batches of any size.
        levels = features.reshape(self.learners, images.shape[0], *features.shape[1:])
        return tuple(levels.unbind())


class _Masked(nn.Module):
    """A module whose map (N, C, H, W) is masked for each learner: (learners N, C, H, W)."""

    def __init__(self, module: nn.Module, channels: int, learners: int) -> None:
        super().__init__()
        self.module = module
        self.learners = learners
        self.shared = nn.Conv2d(channels, channels, 1)
        self.own = nn.Conv2d(channels, channels * learners, 1)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.module(x)
        masks = torch.sigmoid(self.own(torch.relu(self.shared(features))))
        return torch.cat([features * mask for mask in masks.chunk(self.learners, 1)])


def _insert(backbone: nn.Module, at: str, learners: int) -> None:
    """Replace a module of a backbone by one that also masks its map."""
    try:
        module = backbone.get_submodule(at)
    except AttributeError as error:
        known = ", ".join(name for name, _ in backbone.named_modules() if name)
        raise UserError(f"abe: the backbone has no module {at!r}; it has {known:.300}") from error
    parent, _, name = at.rpartition(".")
    channels = _channels(backbone, module, at)
    setattr(backbone.get_submodule(parent), name, _Masked(module, channels, learners))
    try:
        _try(backbone)
    except FAILURES as error:
        raise UserError(
            f"abe: the backbone cannot do with a mask on {at!r} ({words_of(error)}); name a module "
            f"that it calls, such as {at}.0"
        ) from error


def _try(backbone: Any) -> None:
    """Pass an image through."""
    planes = 1 if backbone.preprocess.channels == "L" else 3
    training = backbone.training
    with torch.no_grad():
        backbone.eval()(torch.zeros(1, planes, _SIDE, _SIDE))
    backbone.train(training)


def _channels(backbone: Any, module: nn.Module, at: str) -> int:
    """Return how many channels the map of a module has, by passing an image through."""
    seen: list[Any] = []
    handle = module.register_forward_hook(lambda _, __, output: seen.append(output))
    _try(backbone)
    handle.remove()
    if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].ndim != 4:
        raise UserError(f"abe: the module {at!r} does not give one feature map (N, C, H, W)")
    return seen[0].shape[1]
