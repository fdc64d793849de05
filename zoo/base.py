"""What the core asks of a component, and the few types they share. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image
    from torch import Tensor

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Preprocess:
    """What a backbone expects of its input; the pipeline obeys it.

    Attributes:
        channels: order of the colour planes, or ``"L"`` for one gray plane.
        scale: value of a white pixel before ``mean`` is subtracted: 1 or 255.
        mean: one value for each plane, in the order of ``channels`` and units of ``scale``.
        std: likewise; the input is ``(pixels * scale / 255 - mean) / std``.
    """

    channels: Literal["RGB", "BGR", "L"] = "RGB"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


@runtime_checkable
class ImageDataset(Protocol):
    """A map-style data set: ``dataset[i]`` is ``(PIL image in mode RGB or L, label)``.

    The classes of the train and the test split are disjoint. A data set whose images fit in memory
    may also have ``images``, a uint8 tensor (N, channels, H, W), from which batches are then cut.

    Attributes:
        labels: int64 array (N,), known without reading an image; index into ``class_names``.
        class_names: the name of every class of this split.
    """

    labels: NDArray[np.int64]
    class_names: Sequence[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, int]: ...

    def fingerprint(self) -> str:
        """Return a short digest that changes when the images, labels or the split change."""
        ...

    def verify(self) -> list[str]:
        """Return what is wrong with the files on disk, a line for each; empty when all is well."""
        ...


class BatchSampler(Protocol):
    """Decides what a batch is: yields lists of indices, epoch after epoch, without end.

    Its constructor is given by the runtime, if it has such parameters: ``labels``, ``seed``, and
    ``embed``, a function from indices of training images to what the network as it is makes of
    them, an array (n, d). One that uses it has ``draws_late = True``: a batch is then drawn only
    when it is due. If it has ``batch_size``, a loss that needs larger batches (``check_batch``, see
    :class:`zoo.losses.spectral_clust.SpectralClustLoss`) says so before training.
    """

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        ...

    def __iter__(self) -> Iterator[list[int]]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands, as plain numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next batch is the one that would have come next."""
        ...


class Backbone(Protocol):
    """A ``torch.nn.Module`` from images (N, channels, H, W) to one feature map for each level.

    A feature map is (N, C, H', W'), or (N, C) where the network has pooled already. One of several
    levels may say what they are called, a short name for each, in ``level_names``.

    Attributes:
        feature_dims: C of each level.
        preprocess: what the input has to be.
    """

    feature_dims: tuple[int, ...]
    preprocess: Preprocess

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the feature map of each level."""
        ...


# What the runtime can supply, by kind, to a component that declares the parameter.
RUNTIME: dict[str, frozenset[str]] = {
    "losses": frozenset({"num_classes", "embedding_size"}),
    "miners": frozenset(),
    "samplers": frozenset({"labels", "seed", "embed"}),
    "backbones": frozenset(),
    "datasets": frozenset({"split"}),
}


def cache_dir() -> Path:
    """Return the folder for what can be made again: ``$ZOO_CACHE``, else the user's cache."""
    import platformdirs

    return Path(os.environ.get("ZOO_CACHE") or platformdirs.user_cache_dir("metric-zoo"))
