"""Distances of other spaces as cosines, so that the exact evaluation and search work in them.

A space has vectors q of a query and g of an item of the gallery, whose inner product is larger the
nearer they are (:class:`zoo.base.Space`). With L the length of the longest g, one more number makes
all g equally long, and the order of a query's cosines is that of its distances::

    q' = (q, 0)        g' = (g, sqrt(L^2 - |g|^2))        cos(q', g') = q . g / (|q| L)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.base import Space


def as_queries(points: Tensor, space: Space) -> Tensor:
    """Return vectors (N, k) of queries, float64, from points (N, d)."""
    vectors = space.query_vectors(points.double())
    return torch.cat([vectors, torch.zeros_like(vectors[:, :1])], 1)


def longest_of(points: Tensor, space: Space) -> float:
    """Return the length of the longest vector of a gallery of points (M, d)."""
    return float(torch.linalg.vector_norm(space.gallery_vectors(points.double()), dim=1).max())


def as_gallery(points: Tensor, space: Space, longest: float) -> Tensor:
    """Return vectors (M, k) of a gallery, float64 and all of length ``longest``."""
    vectors = space.gallery_vectors(points.double())
    missing = longest**2 - vectors.square().sum(1, keepdim=True)
    return torch.cat([vectors, missing.clamp_min(0).sqrt()], 1)


def distances_of(cosines: Tensor, queries: Tensor, space: Space, longest: float) -> Tensor:
    """Return the distances that cosines (N, M) of queries, points (N, d), stand for, float64."""
    queries = queries.double()
    lengths = torch.linalg.vector_norm(space.query_vectors(queries), dim=1, keepdim=True)
    return space.distances_of(cosines.double() * lengths * longest, queries)


def compared(
    embeddings: NDArray[Any], space: Space | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return unit vectors of embeddings (N, d) as queries and as gallery, compared by cosines."""
    exact = torch.from_numpy(np.asarray(embeddings, np.float64))
    if space is None:
        unit = _unit(exact)
        return unit, unit
    return sides_of(space.points(exact), space)


def sides_of(points: Tensor, space: Space) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return unit vectors of points (N, d) as queries and as gallery, compared by cosines."""
    gallery = as_gallery(points, space, longest_of(points, space))
    return _unit(as_queries(points, space)), _unit(gallery)


def _unit(vectors: Tensor) -> NDArray[np.float64]:
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    found: NDArray[np.float64] = (vectors / torch.where(lengths == 0, 1, lengths)).numpy()
    return found
