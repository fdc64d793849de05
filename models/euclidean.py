"""The Euclidean space: embeddings as they are, compared by their distance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ._space import safe_sqrt, squared_distances


class EuclideanSpace:
    """Compare embeddings by |x - y|, without scaling them to length 1.

    For a query x, the distance of y falls with (x, 1) . (y, -|y|^2 / 2), which is
    (|x|^2 - |x - y|^2) / 2.
    """

    paper: ClassVar[str] = ""

    def points(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings (N, d) themselves."""
        return embeddings

    def distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Return |a_i - b_j| (N, M); its gradient is 0 where points are equal."""
        return safe_sqrt(squared_distances(a, b))

    def query_vectors(self, points: Tensor) -> Tensor:
        """Return (x, 1), (N, d + 1)."""
        return torch.cat([points, torch.ones_like(points[:, :1])], 1)

    def gallery_vectors(self, points: Tensor) -> Tensor:
        """Return (y, -|y|^2 / 2), (M, d + 1)."""
        return torch.cat([points, points.square().sum(1, keepdim=True) / -2], 1)

    def distances_of(self, products: Tensor, queries: Tensor) -> Tensor:
        """Return the distances (N, M) of queries (N, d) from inner products (N, M)."""
        return (queries.square().sum(1, keepdim=True) - 2 * products).clamp_min(0).sqrt()
