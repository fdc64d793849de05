"""Random triplets of a batch, for losses that generate harder ones from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._shared import Masks

DRAWN_BY_PLACE = "which images meet in a triplet is drawn at random, by their place in the batch"


class Triplets(NamedTuple):
    """One triplet for each image as the anchor.

    Attributes:
        positive: (N,) its index, another image of the anchor's class.
        negative: (N,) its index.
        valid: (N,) bool; False for an anchor without a positive or a negative.
    """

    positive: Tensor
    negative: Tensor
    valid: Tensor


def draw_triplets(pairs: Masks) -> Triplets:
    """Return for each anchor one of its positives and one of its negatives, each equally likely.

    The random numbers are from torch's generator of the device.
    """
    random = torch.rand(2, *pairs.positive.shape, device=pairs.positive.device)
    positive, negative = (
        r.masked_fill(~m, -1).argmax(1) for r, m in zip(random, pairs, strict=True)
    )
    return Triplets(positive, negative, pairs.positive.any(1) & pairs.negative.any(1))


def mean_over(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the valid values, 0 with a graph if there are none."""
    return torch.where(valid, values, 0).sum() / valid.sum().clamp_min(1)
