"""A small network whose convolutions depend only on angles."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from .convnet import ConvNet

Operator = Literal["linear", "cosine", "sigmoid"]
_TINY = 1e-8  # added to squared lengths
_MOST = 1 - 1e-6  # the angle has no derivative at cosines of 1 and -1


class SphereConv(nn.Module):
    """A convolution that gives a function of the angle between a filter and a patch.

    With theta the angle of the weights w of a filter and the patch x, one of::

        linear    g = 1 - 2 theta / pi
        cosine    g = cos theta
        sigmoid   g = (1 + e^(-pi/2k)) / (1 - e^(-pi/2k)) (1 - e^(theta/k - pi/2k))
                      / (1 + e^(theta/k - pi/2k))

    All fall from 1 at theta = 0 over 0 at pi/2 to -1 at pi. The lengths of w and x do not matter; a
    patch of zeros is at a right angle to all filters.

    Args:
        channels_in: of the maps (N, C, H, W).
        channels_out: the number of filters.
        size: of a filter, odd; the maps are padded with zeros, and keep their size.
        operator: which g.
        k: of the sigmoid; small values make it steep.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        size: int = 3,
        operator: Operator = "cosine",
        k: float = 0.3,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, size, size))
        nn.init.orthogonal_(self.weight)
        self.operator, self.k = operator, k
        self.register_buffer("ones", torch.ones(1, channels_in, size, size), persistent=False)
        self.ones: Tensor

    def forward(self, maps: Tensor) -> Tensor:
        """Return g (N, channels_out, H, W) of maps (N, channels_in, H, W)."""
        padding = self.weight.shape[-1] // 2
        filters = F.normalize(self.weight.flatten(1)).view_as(self.weight)
        squares = F.conv2d(maps.square(), self.ones, padding=padding)
        cosine = F.conv2d(maps, filters, padding=padding) / (squares + _TINY).sqrt()
        if self.operator == "cosine":
            return cosine
        theta = torch.acos(cosine.clamp(-_MOST, _MOST))
        if self.operator == "linear":
            return 1 - 2 * theta / math.pi
        half = math.pi / (4 * self.k)  # (1 - e^2a) / (1 + e^2a) = -tanh(a)
        return torch.tanh(half - theta / (2 * self.k)) / math.tanh(half)


class SphereConvNet(ConvNet):
    """The blocks of ``convnet`` with convolutions on the sphere of directions.

    In each block, :class:`SphereConv` takes the place of the convolution; BatchNorm, ReLU and the
    2x2 max pooling remain.

    Differs from the paper in the network, which there has three convolutions before each pooling,
    and in the loss: a generalised angular softmax, and a term that makes the filters of a layer
    orthogonal. Here they only start so.

    Args:
        width: channels of the first block; every further block doubles them.
        blocks: how often the image is halved.
        operator: the function of the angle: linear, cosine or sigmoid.
        k: of the sigmoid; 0.3 in the authors' code.

    Raises:
        UserError: an argument is out of range, see ``convnet``.

    Reference:
        Liu, Zhang, Li, Yu, Dai, Zhao, Song. Deep Hyperspherical Learning. NIPS 2017,
        arXiv:1711.03189, section 2; checked with the authors' code.
    """

    paper = "Liu et al. 2017, Deep Hyperspherical Learning"

    def __init__(
        self, width: int = 16, blocks: int = 4, operator: Operator = "cosine", k: float = 0.3
    ) -> None:
        super().__init__(width, blocks)
        if operator not in ("linear", "cosine", "sigmoid"):
            raise UserError(f"operator must be linear, cosine or sigmoid, not {operator!r}")
        if not 0.01 <= k < math.inf:  # below, e^(pi/2k) overflows in the formula
            raise UserError(f"k must be at least 0.01, not {k}")
        channels = [1, *(width * 2**block for block in range(blocks))]
        for block, (one, other) in zip(self.blocks, pairwise(channels), strict=True):
            assert isinstance(block, nn.Sequential)
            block[0] = SphereConv(one, other, 3, operator, k)
