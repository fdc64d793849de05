"""From the bytes of a data set to a backbone's input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.base import Preprocess
from zoo.errors import UserError

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's convert("L")


class Preprocessor(nn.Module):
    """Converts the bytes of a data set to a backbone's input, on the images' device.

    uint8 (N, 3, H, W) in RGB or (N, 1, H, W) in gray become floats (N, planes, H, W).

    Raises:
        UserError: ``preprocess`` contradicts itself; images have another type or shape.
    """

    factor: Tensor
    offset: Tensor
    luma: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        planes = 1 if preprocess.channels == "L" else 3
        if not len(preprocess.mean) == len(preprocess.std) == planes or min(preprocess.std) <= 0:
            raise UserError(
                f"{preprocess}: channels {preprocess.channels!r} need {planes} values of mean and "
                "as many of std, all above 0"
            )
        self.channels = preprocess.channels
        mean = torch.tensor(preprocess.mean, dtype=torch.float64)
        std = torch.tensor(preprocess.std, dtype=torch.float64)
        # Not persistent: the backbone defines them, and no file of weights may change them.
        for name, values in {
            "factor": preprocess.scale / 255 / std,
            "offset": -mean / std,
            "luma": torch.tensor(_LUMA),
        }.items():
            self.register_buffer(name, values.float().view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(images * scale / 255 - mean) / std`` in the channels of the backbone."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UserError(
                f"images are {images.dtype} of shape {tuple(images.shape)}; the embedder takes "
                "uint8 (N, 3, H, W) in RGB or (N, 1, H, W) in gray, as in the data set"
            )
        pixels = images.to(self.factor.dtype)
        if images.shape[1] == 3 and self.channels == "L":
            pixels = (pixels * self.luma).sum(1, keepdim=True)
        elif images.shape[1] == 3 and self.channels == "BGR":
            pixels = pixels.flip(1)
        return torch.addcmul(self.offset, pixels, self.factor)  # a gray plane becomes three
