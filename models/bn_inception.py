"""BN-Inception: GoogLeNet with batch normalisation, the usual backbone of metric learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.base import Preprocess
from zoo.errors import UserError

from ._weights import download, is_pretrained, load_matching, located, read_state

_URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

# Channels of: 1x1; 3x3 after its reduction; two 3x3 after theirs; projection of the pooled input.
# 0 if there is no such branch: those blocks halve the map, and output the pooled input unchanged.
_BLOCKS: dict[str, tuple[int, tuple[int, int], tuple[int, int], int]] = {
    "3a": (64, (64, 64), (64, 96), 32),
    "3b": (64, (64, 96), (64, 96), 64),
    "3c": (0, (128, 160), (64, 96), 0),
    "4a": (224, (64, 96), (96, 128), 128),
    "4b": (192, (96, 128), (96, 128), 128),
    "4c": (160, (128, 160), (128, 160), 128),
    "4d": (96, (128, 192), (160, 192), 128),
    "4e": (0, (128, 192), (192, 256), 0),
    "5a": (352, (192, 320), (160, 224), 128),
    "5b": (352, (192, 320), (192, 224), 128),
}
_MAX_POOLED = ("5b",)  # of the blocks with a projection; the others pool by the mean
_LEVELS = {"L": "3c", "M": "4e", "H": "5b"}
_LEAST = 7  # pixels per side, of which the stem leaves one


class BNInception(nn.Module):
    """BN-Inception: images (N, 3, H, W) to the maps after the blocks 3c, 4e and 5b.

    The maps are 1/16, 1/32 and 1/32 of the image's sides: 14, 7 and 7 of 224. Parameters have the
    names of the public ImageNet checkpoint.

    Layers above the highest of ``levels`` are not built, so that every parameter has a gradient; in
    a file they are ignored, like the classifier, and may be missing. Everything else must match.

    Args:
        weights: ``None`` for random values; ``"pretrained"`` or ``"imagenet"`` for the public
            checkpoint, downloaded into torch.hub's folder; ``"hf:owner/name"`` for that of a
            repository of Hugging Face; or a file of its names, of torch or safetensors.
        levels: the maps to return, a subset of ``"LMH"`` in that order: L of 576 channels (3c), M
            of 1056 (4e), H of 1024 (5b).

    Attributes:
        feature_dims: channels of each level.
        preprocess: that of the checkpoint: BGR in 0..255 less the mean.

    Raises:
        UserError: ``levels`` is not such a subset; weights cannot be loaded or do not match; images
            are below 7x7.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, figure 5.

    Differs from the paper as the checkpoint does: convolutions have biases; the first one is not
    separable; 4c and 4d have 608 channels and 4e 1056, instead of 576 and 1024 in the table.
    The 3x3 maxima of 3c and 4e are padded for maps with odd sides (an image of 240x240), where the
    sizes of their branches would otherwise differ; even sides are not affected.
    """

    paper: ClassVar[str] = (
        "Ioffe & Szegedy 2015, Batch Normalization: Accelerating Deep Network Training by Reducing "
        "Internal Covariate Shift"
    )
    preprocess = Preprocess(
        channels="BGR", scale=255.0, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0)
    )

    def __init__(self, weights: str | None = None, levels: str = "H") -> None:
        super().__init__()
        self.levels = _check_levels(levels)
        self.level_names = tuple(levels)
        names = list(_BLOCKS)
        self._blocks = names[: names.index(_LEVELS[levels[-1]]) + 1]
        self._add_layer("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add_layer("conv2_3x3_reduce", 64, 64, 1)
        self._add_layer("conv2_3x3", 64, 192, 3)
        dims = {}
        width = 192
        for block in self._blocks:
            width = dims[block] = self._add_block(block, width)
        self.feature_dims = tuple(dims[_LEVELS[level]] for level in levels)
        if weights is not None:
            self._load(weights)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the map of each level, of images (N, 3, H, W)."""
        if min(images.shape[-2:]) < _LEAST:
            size = "x".join(map(str, images.shape[-2:]))
            raise UserError(
                f"bn_inception takes images of {_LEAST}x{_LEAST} and larger, not {size}; change "
                "images.crop or images.resize"
            )
        x = _halve(self._run("conv1_7x7_s2", images))
        x = _halve(self._run("conv2_3x3", self._run("conv2_3x3_reduce", x)))
        wanted = [_LEVELS[level] for level in self.levels]
        maps = []
        for block in self._blocks:
            x = self._run_block(block, x)
            if block in wanted:
                maps.append(x)
        return tuple(maps)

    def _add_layer(
        self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1
    ) -> None:
        """Add a convolution, and after it a batch normalisation, under the checkpoint's names."""
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _run(self, name: str, x: Tensor) -> Tensor:
        x = self.get_submodule(name)(x)
        return F.relu(self.get_submodule(f"{name}_bn")(x), inplace=True)

    def _add_block(self, block: str, inputs: int) -> int:
        """Add the layers of an inception block; return the width of its output."""
        single, (reduced, three), (reduced2, double), projected = _BLOCKS[block]
        prefix = f"inception_{block}_"
        stride = 1 if projected else 2
        if single:
            self._add_layer(f"{prefix}1x1", inputs, single, 1)
        self._add_layer(f"{prefix}3x3_reduce", inputs, reduced, 1)
        self._add_layer(f"{prefix}3x3", reduced, three, 3, stride)
        self._add_layer(f"{prefix}double_3x3_reduce", inputs, reduced2, 1)
        self._add_layer(f"{prefix}double_3x3_1", reduced2, double, 3)
        self._add_layer(f"{prefix}double_3x3_2", double, double, 3, stride)
        if projected:
            self._add_layer(f"{prefix}pool_proj", inputs, projected, 1)
        return single + three + double + (projected or inputs)

    def _run_block(self, block: str, x: Tensor) -> Tensor:
        single, _, _, projected = _BLOCKS[block]

        def chain(*names: str) -> Tensor:
            out = x
            for name in names:
                out = self._run(f"inception_{block}_{name}", out)
            return out

        branches = [chain("1x1")] if single else []
        branches.append(chain("3x3_reduce", "3x3"))
        branches.append(chain("double_3x3_reduce", "double_3x3_1", "double_3x3_2"))
        if not projected:
            branches.append(_halve_like_a_convolution(x))
        else:
            pool = F.max_pool2d if block in _MAX_POOLED else F.avg_pool2d
            pooled = pool(x, 3, stride=1, padding=1)  # the mean counts the zeros of the padding
            branches.append(self._run(f"inception_{block}_pool_proj", pooled))
        return torch.cat(branches, 1)

    def _load(self, weights: str) -> None:
        path = download(_URL) if is_pretrained(weights) else located(weights)
        dropped = [f"inception_{block}_" for block in _BLOCKS if block not in self._blocks]
        state = _flat(read_state(path), self.state_dict())
        load_matching(self, state, path, ignore=["last_linear.", *dropped])


def _check_levels(levels: str) -> str:
    if not levels or levels != "".join(level for level in _LEVELS if level in levels):
        raise UserError(
            f"levels {levels!r}: give one or more of the letters {', '.join(_LEVELS)}, in that "
            'order, as one text: "H", "LMH"'
        )
    return levels


def _halve(x: Tensor) -> Tensor:
    """Return maxima of 3x3 at every other position; the last window may extend over the edge."""
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


def _halve_like_a_convolution(x: Tensor) -> Tensor:
    """Return the same, in the size of a 3x3 convolution of stride 2 and padding 1."""
    odd_rows, odd_columns = x.shape[-2] % 2, x.shape[-1] % 2
    if odd_rows or odd_columns:
        x = F.pad(x, (0, odd_columns, 0, odd_rows))  # changes no maximum: after a ReLU, x >= 0
    return _halve(x)


def _flat(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``state`` with (C,) instead of (1, C), the shape of batch norms in older files."""
    flat = dict(state)
    for name in expected.keys() & state.keys():
        if state[name].shape == (1, *expected[name].shape):
            flat[name] = state[name][0]
    return flat
