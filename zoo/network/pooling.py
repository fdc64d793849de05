"""From a feature map (N, C, H, W) to a vector (N, C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.network.choices import check_choice

Pooling = Literal["avg", "max", "gem", "attention"]


def pooling(kind: Pooling, channels: int) -> nn.Module:
    """Return the module that pools a map of that many channels.

    It is called as ``pool(maps, dtype)``, with the type in which it computes and of its result.

    Raises:
        UserError: there is no such kind.
    """
    check_choice("pooling", kind, Pooling)
    made: dict[str, Callable[[], nn.Module]] = {
        "avg": MeanPooling,
        "max": MaxPooling,
        "gem": GeneralisedMean,
        "attention": lambda: AttentionPooling(channels),
    }
    return made[kind]()


class MeanPooling(nn.Module):
    """The mean over the positions."""

    def forward(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (N, C) of maps (N, C, H, W)."""
        return maps.mean((2, 3), dtype=dtype)


class MaxPooling(nn.Module):
    """The maximum over the positions."""

    def forward(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (N, C) of maps (N, C, H, W)."""
        return maps.amax((2, 3)).to(dtype)


class GeneralisedMean(nn.Module):
    """GeM: ``(mean of x^p)^(1/p)`` over the positions, with one learned p for all channels.

    p starts at 3; at 1 it is the mean, and towards infinity the maximum. x is at least 1e-6: a
    power of a negative number is not defined, and features after a ReLU have none.

    Source: Radenović, Tolias, Chum. Fine-Tuning CNN Image Retrieval with No Human Annotation.
    TPAMI 2019, Eq. 3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(3.0))

    def forward(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (N, C) of maps (N, C, H, W)."""
        x = maps.to(dtype).clamp_min(1e-6).flatten(2)
        # The power of x / max cannot overflow, and its root is taken of a number near 1.
        largest = x.amax(2, keepdim=True)
        mean = (x / largest).pow(self.p).mean(2)
        return largest.squeeze(2) * mean.pow(1 / self.p)


class AttentionPooling(nn.Module):
    """A mean over the positions, weighted by ``softmax of w · x`` with a learned w of C numbers.

    w starts at 0, which is the mean. One query, one head and no further layers: the weights of
    a position depend on its own features.

    Source: Ilse, Tomczak, Welling. Attention-based Deep Multiple Instance Learning. ICML 2018,
    Eq. 8, without the hidden layer of the score.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (N, C) of maps (N, C, H, W)."""
        x = maps.to(dtype).flatten(2)
        share = torch.einsum("ncp,c->np", x, self.weight).softmax(1)
        return torch.einsum("ncp,np->nc", x, share)
