"""A small network for small gray images, such as single characters."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from zoo.base import Preprocess
from zoo.errors import UserError

_MOST_CHANNELS = 4096  # more than useful: the last block alone has 75 million weights


class ConvNet(nn.Module):
    """3x3 convolutions, each with BatchNorm and ReLU, and a 2x2 max pooling after each.

    Images (N, 1, H, W) become one map (N, width * 2^(blocks - 1), H / 2^blocks, W / 2^blocks): 128
    channels of 2 x 2 for a glyph of 32 x 32. It is made for CPUs: at full resolution, BatchNorm
    takes half the time of a step, so the first block is narrow. The pooling is worth its cost: with
    strides instead, Recall@1 on unseen characters is half as high.

    Args:
        width: channels of the first block; every further block doubles them.
        blocks: how often the image is halved.

    Attributes:
        feature_dims: (width * 2^(blocks - 1),).
        preprocess: one gray plane; the mean and deviation are those of white text on black.

    Raises:
        UserError: ``width`` or ``blocks`` is below 1, or they make more than 4,096 channels; an
            image has fewer than 2^blocks pixels per side.

    Source: the four blocks with which Vinyals et al., "Matching Networks for One Shot Learning",
    2016, embed Omniglot's characters; there all have 64 channels.
    """

    preprocess = Preprocess(channels="L", scale=1.0, mean=(0.07,), std=(0.23,))

    def __init__(self, width: int = 16, blocks: int = 4) -> None:
        super().__init__()
        if width < 1 or blocks < 1:
            raise UserError(f"convnet: width={width} and blocks={blocks} must be 1 or more")
        # The first condition keeps the power of two from filling the memory before the comparison.
        if blocks > _MOST_CHANNELS or width * 2 ** (blocks - 1) > _MOST_CHANNELS:
            raise UserError(
                f"convnet: width={width} and blocks={blocks} make more than {_MOST_CHANNELS:,} "
                "channels; every block doubles them, so give fewer or a smaller width"
            )
        channels = [1, *(width * 2**block for block in range(blocks))]
        self.blocks = nn.Sequential(*(_block(*pair) for pair in pairwise(channels)))
        self.feature_dims = (channels[-1],)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return the feature map of images (N, 1, H, W), in a tuple."""
        least = 2 ** len(self.blocks)
        if min(images.shape[-2:]) < least:
            size = "x".join(map(str, images.shape[-2:]))
            raise UserError(
                f"convnet: images of {size} pixels cannot be halved {len(self.blocks)} times; give "
                f"{least}x{least} and larger, or fewer blocks"
            )
        return (self.blocks(images),)


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),  # BatchNorm has a bias
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
