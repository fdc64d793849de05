"""From the pixels of a data set to embeddings: preprocessing, backbone, pooling, linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.base import Backbone, Space
from zoo.errors import UserError, blaming
from zoo.network.choices import check_choice
from zoo.network.heads import Norm, head
from zoo.network.pooling import Pooling
from zoo.network.pooling import pooling as pooling_of
from zoo.network.preprocessor import Preprocessor
from zoo.registry import contracts
from zoo.support.precision import without_autocast

Freeze = Literal["none", "batchnorm", "trunk"]

_OWES = ("feature_dims", "preprocess")


class Embedder(nn.Module):
    """The whole network: uint8 images (N, 1 or 3, H, W) to embeddings (N, d), not normalised.

    A backbone of several levels, such as ``bn_inception`` with levels L, M and H, has a pooling and
    a linear layer of size d for each level, and the embeddings (N, levels d) are concatenated. In
    training each level has its own loss (:meth:`levels`); for search, :meth:`combined` scales each
    level to length 1, so that a cosine is the mean of the levels' cosines.

    From the pooled features on, it computes in float32, even under autocast: rounded embeddings
    tie, and ties count against a query.

    Args:
        backbone: a ``torch.nn.Module`` that is a ``Backbone``.
        embedding_size: d of a level; ``None`` for no linear layer: the features are the embeddings.
        pooling: over the positions of a feature map, see :mod:`zoo.network.pooling`.
        freeze: ``"batchnorm"`` does not train the statistics, scale and shift of the backbone's
            BatchNorm layers; ``"trunk"`` does not train the backbone at all.
        name: of the backbone, for messages; by default that of its class.
        slices: sizes of the parts into which the embedding of each level is cut, each of which is a
            level of its own to the loss; by default it stays whole.
        space: in which embeddings are compared; by default by their cosines.
        hidden: units of a hidden layer before the linear one; by default there is none.
        norm: what is normalised to mean 0 and variance 1, see :func:`zoo.network.heads.head`.

    Attributes:
        level_names: the backbone's ``level_names``, else "1", "2", ...
        level_sizes: the size of each level's embedding.
        embedding_size: their sum.
        search_size: the numbers of what a search compares, see :meth:`points`.

    Raises:
        UserError: the backbone is not valid; an argument has an unknown value; later, the backbone
            failed, with the image size in the message.
    """

    def __init__(
        self,
        backbone: Backbone,
        embedding_size: int | None,
        pooling: Pooling = "avg",
        freeze: Freeze = "none",
        name: str | None = None,
        slices: Sequence[int] | None = None,
        space: Space | None = None,
        hidden: int | None = None,
        norm: Norm = "none",
    ) -> None:
        super().__init__()
        check_choice("freeze", freeze, Freeze)
        if not isinstance(backbone, nn.Module) or not all(map(partial(hasattr, backbone), _OWES)):
            raise UserError(
                f"{type(backbone).__name__} is not a backbone, which is a torch.nn.Module with "
                f"{' and '.join(_OWES)}, see zoo.base.Backbone"
            )
        if fault := contracts.backbone(backbone):
            raise UserError(f"{type(backbone).__name__} {fault}")
        dims = list(backbone.feature_dims)
        if embedding_size is not None and embedding_size < 1:
            raise UserError(f"embedding_size {embedding_size}: give 1 or more, or null for none")
        self.preprocessor = Preprocessor(backbone.preprocess)
        self.backbone = backbone
        self.pools = nn.ModuleList(pooling_of(pooling, dim) for dim in dims)
        self.heads = nn.ModuleList(head(dim, embedding_size, hidden, norm) for dim in dims)
        self.feature_sizes = dims
        names = getattr(backbone, "level_names", [str(i + 1) for i in range(len(dims))])
        sizes = [embedding_size or dim for dim in dims]
        self.level_names, self.level_sizes = _cut(names, sizes, slices)
        self.embedding_size = sum(self.level_sizes)
        if space is not None and len(self.level_sizes) > 1:
            raise UserError(
                f"{name or type(backbone).__name__} has {len(self.level_sizes)} levels, which are "
                "compared by cosines; set model.space=null"
            )
        self.space = space
        self.search_size = self.embedding_size
        if space is not None:
            self.search_size = _size_of_points(space, self.embedding_size)
        self.freeze = freeze
        self.name = name or type(backbone).__name__
        for module in self._frozen():
            module.requires_grad_(False)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings (N, d) of uint8 images (N, 1 or 3, H, W)."""
        return self.project(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features (N, C) of uint8 images (N, 1 or 3, H, W)."""
        pixels = self.preprocessor(images).to(memory_format=self._memory_format())
        with torch.no_grad() if self.freeze == "trunk" else nullcontext():
            levels = self._maps(pixels)
            fault = contracts.levels(levels, self.feature_sizes)
            if fault:
                raise UserError(f"{self.name} {fault}")
        with without_autocast(images.device.type):
            pooled = [self._pooled(*of_level) for of_level in zip(levels, self.pools, strict=True)]
            return _side_by_side(pooled)

    def project(self, features: Tensor) -> Tensor:
        """Return the embeddings (N, d) of pooled features (N, C)."""
        levels = torch.split(features, self.feature_sizes, dim=1)
        with without_autocast(features.device.type):
            projected = [layers(level) for layers, level in zip(self.heads, levels, strict=True)]
            return _side_by_side(projected)

    def levels(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return the embedding of each level, (N, d) each."""
        return tuple(torch.split(embeddings, self.level_sizes, dim=1))

    def points(self, embeddings: Tensor) -> Tensor:
        """Return what a search compares, (N, k): embeddings of length 1, or points of the space."""
        return F.normalize(embeddings) if self.space is None else self.space.points(embeddings)

    def combined(self, embeddings: Tensor) -> Tensor:
        """Return embeddings (N, d) for search: all levels have equal weight."""
        return _of_equal_length(embeddings, self.level_sizes)

    def combined_features(self, features: Tensor) -> Tensor:
        """Return pooled features (N, C) for search: all levels of the backbone count the same."""
        return _of_equal_length(features, self.feature_sizes)

    def train(self, mode: bool = True) -> Embedder:
        """Switch to training, or with ``False`` to evaluation mode, where frozen parts stay."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the new layers: of the pooling and of the embedding."""
        new = (*self.pools.parameters(), *self.heads.parameters())
        return [p for p in new if p.requires_grad]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone that are not frozen."""
        return [p for p in self.backbone.parameters() if p.requires_grad]

    def _maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return the feature map of each level; errors name the backbone and the image size."""
        if torch.compiler.is_dynamo_compiling():  # in torch 2.4, it cannot trace the block below
            return self.backbone(pixels)
        size = "x".join(map(str, pixels.shape[-2:]))
        with blaming(f"{self.name} on images of {size} pixels"):
            return self.backbone(pixels)

    def _frozen(self) -> Iterator[nn.Module]:
        if self.freeze == "trunk":
            yield self.backbone
        elif self.freeze == "batchnorm":
            yield from (m for m in self.backbone.modules() if isinstance(m, _BatchNorm))

    def _memory_format(self) -> torch.memory_format:
        """Return the memory format of the backbone's weights: mixing costs a copy per layer."""
        for weight in self.backbone.parameters():
            if weight.ndim == 4:
                channels_last = weight.is_contiguous(memory_format=torch.channels_last)
                if channels_last != weight.is_contiguous():  # with one channel, it is both
                    return torch.channels_last if channels_last else torch.contiguous_format
        return torch.preserve_format

    def _pooled(self, level: Tensor, pool: nn.Module) -> Tensor:
        """Pool (N, C, H, W) or (N, C) to (N, C), in the precision of the preprocessing."""
        full = self.preprocessor.factor.dtype
        return level.to(full) if level.ndim == 2 else pool(level, full)


def _of_equal_length(vectors: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return vectors in which each part has length 1; one that has only one part is unchanged."""
    if len(sizes) == 1:
        return vectors
    return torch.cat([F.normalize(part) for part in torch.split(vectors, list(sizes), dim=1)], 1)


def _cut(
    names: Sequence[str], sizes: Sequence[int], slices: Sequence[int] | None
) -> tuple[list[str], list[int]]:
    """Return the names and sizes of the levels after each was cut into slices."""
    if slices is None:
        return list(names), list(sizes)
    if any(sum(slices) != size for size in sizes):
        raise UserError(
            f"model.slices {list(slices)} are {sum(slices)} together, and an embedding has "
            f"{' or '.join(map(str, dict.fromkeys(sizes)))} numbers; make them equal"
        )
    several = len(sizes) > 1
    numbers = range(1, len(slices) + 1)
    cut = [f"{name}{i}" if several else str(i) for name in names for i in numbers]
    return cut, list(slices) * len(sizes)


def _side_by_side(levels: list[Tensor]) -> Tensor:
    return levels[0] if len(levels) == 1 else torch.cat(levels, 1)


def _size_of_points(space: Space, embedding_size: int) -> int:
    """Return the numbers of a point of a space, which is tried."""
    name = type(space).__name__
    fault = contracts.space(space)
    if not fault:
        with blaming(f"{name}.points()"), torch.no_grad():
            points = space.points(torch.ones(2, embedding_size))
        fault = contracts.points(points, 2)
    if fault:
        raise UserError(f"{name} {fault}")
    return points.shape[1]
