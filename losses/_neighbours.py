"""The softmax over neighbours, shared by losses of the NCA family."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_NOTHING = -1e30  # its exponential is 0, and every number stays finite


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), exact everywhere; PyTorch's returns x itself from 20 on."""
    return -F.logsigmoid(-x)


def log_sum_exp(logits: Tensor, mask: Tensor) -> Tensor:
    """Return for each row the log of the sum of exp over the mask; about -1e30 for an empty one."""
    return logits.masked_fill(~mask, _NOTHING).logsumexp(1)


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over the valid values, 0 with a graph if there are none."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp_min(1)


def neighbour_nll(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean over the anchors of -log of the positives' share in the softmax.

    With P and Q the positives and negatives of an anchor, the share is ``sum_P exp / sum_PQ exp``.
    Its logarithm is computed from the logarithms of the two sums, so that it neither overflows nor
    loses its gradient if the share rounds to 0 or 1. Anchors without a positive are left out.

    Args:
        logits: (N, M) of an anchor and each of its neighbours.
        positive: (N, M) which of them are positives.
        negative: (N, M) which of them are negatives; the others do not count.
    """
    gap = log_sum_exp(logits, negative) - log_sum_exp(logits, positive)
    return mean_where(softplus(gap), positive.any(1))
