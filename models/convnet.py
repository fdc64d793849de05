"""ConvNet: a small network for small images."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.base import Preprocess
from zoo.errors import UserError


class ConvNet(nn.Module):
    """Four 3x3 convolutions with BatchNorm and ReLU, max-pooled in between; trains in minutes.

    The channels are ``width`` times 1, 2, 4 and 4; the map is an eighth of the image's side. There
    are no pretrained weights.

    Args:
        width: channels of the first convolution.

    Attributes:
        feature_dims: ``(4 * width,)``.
        preprocess: one gray plane, 0..1, with the mean and deviation of the glyphs.

    Shape:
        (N, 1, H, W) with sides of at least 8, to one map (N, 4 * width, H // 8, W // 8).
    """

    preprocess = Preprocess(channels="L", scale=1.0, mean=(0.12,), std=(0.3,))

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        if width < 1:
            raise UserError(f"convnet: width must be at least 1, not {width}")
        self.feature_dims = (4 * width,)
        self.layers = nn.Sequential(
            _block(1, width),
            nn.MaxPool2d(2),
            _block(width, 2 * width),
            nn.MaxPool2d(2),
            _block(2 * width, 4 * width),
            nn.MaxPool2d(2),
            _block(4 * width, 4 * width),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the one feature map."""
        return (self.layers(images),)


def _block(channels: int, out_channels: int) -> nn.Sequential:
    # No bias: BatchNorm would take it away again.
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )
