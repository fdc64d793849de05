"""The softmax over neighbours, as losses of the family of NCA share it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_NOTHING = -1e30  # its exponential is 0, and it leaves every number finite


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), exact everywhere; that of PyTorch gives x itself from 20 on."""
    return -F.logsigmoid(-x)


def log_sum_exp(logits: Tensor, mask: Tensor) -> Tensor:
    """Return for each row the log of the sum of exp over the mask; about -1e30 for none."""
    return logits.masked_fill(~mask, _NOTHING).logsumexp(1)


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over what is valid, 0 with a graph if nothing is."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp_min(1)


def neighbour_nll(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean over the anchors of -log of the share that positives have in the softmax.

    With P and Q the positives and negatives of an anchor, the share is ``sum_P exp / sum_PQ exp``.
    Its logarithm is taken from the two sums in logarithms, so that it neither overflows nor dies
    where the share rounds to 0 or 1. Anchors without a positive are left out.

    Args:
        logits: (N, M) of an anchor and each of its neighbours.
        positive: (N, M) which of them are positives.
        negative: (N, M) which of them are negatives; the others are no neighbours.
    """
    gap = log_sum_exp(logits, negative) - log_sum_exp(logits, positive)
    return mean_where(softplus(gap), positive.any(1))
