"""Layers of losses that have a small network of their own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a layer in the type of its input."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def standardise(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the columns of x (N, d) with mean 0 and variance 1 over the batch, of any size."""
    centred = x - x.mean(0)
    scaled: Tensor = centred / (centred.square().mean(0) + eps).sqrt()
    return scaled
