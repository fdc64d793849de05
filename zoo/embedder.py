"""The network: pixels -> backbone -> pooling -> a new linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.base import Backbone, Preprocess
from zoo.errors import UserError

Pooling = Literal["avg", "max"]
Freeze = Literal["none", "batchnorm", "trunk"]

_POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": lambda maps: maps.mean((2, 3)),
    "max": lambda maps: maps.amax((2, 3)),
}
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as PIL turns RGB into gray


class Preprocessor(nn.Module):
    """Make of pixels what a backbone expects: ``(pixels * scale / 255 - mean) / std``.

    Shape:
        uint8 (N, 3, H, W) in RGB or (N, 1, H, W) gray, to float32 of as many planes as ``spec``
        has.
    """

    def __init__(self, spec: Preprocess) -> None:
        super().__init__()
        self.spec = spec
        planes = len(spec.channels)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(spec, name), dtype=torch.float32)
            self.register_buffer(name, values.expand(planes).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("luma", torch.tensor(_LUMA).view(1, 3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self.luma: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Return the input of the backbone."""
        pixels = images.float()
        if self.spec.channels == "L" and images.shape[1] == 3:
            pixels = (pixels * self.luma).sum(1, keepdim=True)
        elif self.spec.channels != "L" and images.shape[1] == 1:
            pixels = pixels.expand(-1, 3, -1, -1)
        elif self.spec.channels == "BGR":
            pixels = pixels.flip(1)
        return (pixels * (self.spec.scale / 255) - self.mean) / self.std


class Embedder(nn.Module):
    """A backbone, its feature map pooled, and a linear layer of ``embedding_size``.

    Args:
        backbone: as :class:`zoo.base.Backbone` says, with one level.
        embedding_size: length of the embedding; None for the pooled features themselves, which is
            what "without fine-tuning" means.
        pooling: ``"avg"`` or ``"max"`` over the positions of the map.
        freeze: ``"batchnorm"`` keeps the statistics and the affine parameters of the backbone's
            batch normalisations; ``"trunk"`` keeps all of the backbone.

    Attributes:
        embedding_size: length of what :meth:`forward` returns.

    Raises:
        UserError: for a backbone of more than one level.
    """

    def __init__(
        self,
        backbone: Backbone,
        embedding_size: int | None = 512,
        pooling: Pooling = "avg",
        freeze: Freeze = "none",
    ) -> None:
        super().__init__()
        if len(backbone.feature_dims) != 1:
            raise UserError(
                f"the backbone has {len(backbone.feature_dims)} levels; only one can be trained"
            )
        assert isinstance(backbone, nn.Module)
        self.preprocess = Preprocessor(backbone.preprocess)
        self.backbone = backbone
        self.pooling, self.freeze = pooling, freeze
        (width,) = backbone.feature_dims
        self.embedding_size = embedding_size or width
        sizes = [] if embedding_size is None else [embedding_size]
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        for module in self._frozen():
            module.requires_grad_(False)
        self.train(self.training)

    def forward(self, images: Tensor) -> Tensor:
        """Return raw embeddings (N, embedding_size) of uint8 images (N, C, H, W)."""
        return self.project(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features (N, C) below the linear layer."""
        pixels = self.preprocess(images)
        if pixels.shape[1] > 1:  # the layout of a single plane says nothing
            pixels = pixels.contiguous(memory_format=self._layout())
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.freeze != "trunk"):
            (found,) = self.backbone(pixels)
        return _POOL[self.pooling](found) if found.ndim == 4 else found

    def project(self, features: Tensor) -> Tensor:
        """Return the embeddings of pooled features."""
        for head in self.heads:
            features = head(features)
        return features

    def train(self, mode: bool = True) -> Embedder:
        """Set the mode; what is frozen stays as at test."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trainable parameters of the backbone."""
        return (p for p in self.backbone.parameters() if p.requires_grad)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the new layer."""
        return self.heads.parameters()

    def _frozen(self) -> list[nn.Module]:
        if self.freeze == "trunk":
            return [self.backbone]
        if self.freeze == "batchnorm":
            kinds = (nn.modules.batchnorm._BatchNorm,)
            return [m for m in self.backbone.modules() if isinstance(m, kinds)]
        return []

    def _layout(self) -> torch.memory_format:
        convolutions = (p for p in self.backbone.parameters() if p.ndim == 4 and p.shape[1] > 1)
        weight = next(convolutions, None)
        last = weight is not None and weight.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if last else torch.contiguous_format
