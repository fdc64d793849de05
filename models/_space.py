"""What spaces share: distances of all pairs without loss of digits."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return |a_i - b_j|^2 (N, M) of rows (N, d) and (M, d), from their differences.

    Inner products would lose the distance of points that are close. Equal points have gradient 0.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root of numbers from 0; its gradient at 0 is 0."""
    fine = x > 0
    return torch.where(fine, torch.where(fine, x, 1).sqrt(), 0)
