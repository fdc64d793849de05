"""Distances of other spaces as cosines, so that the exact evaluation and search work in them.

A space has vectors q of a query and g of an item of the gallery, whose inner product is larger the
nearer they are (:class:`zoo.base.Space`). With L the length of the longest g, one more number makes
all g equally long, and the order of a query's cosines is that of its distances::

    q' = (q, 0)        g' = (g, sqrt(L^2 - |g|^2))        cos(q', g') = q . g / (|q| L)

Before, the evaluation takes the mean m of all g off, and scales the principal directions V of g by
their standard deviations s, which adds a number of the query to its products and nothing else::

    q -> V^T q s       g -> V^T (g - m) / s

Without it, points that are far from the origin but close to each other would be ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.base import Space

_LEAST = 1e-15  # of a variance, compared with the largest one, whose rounding error is as large


class Frame(NamedTuple):
    """The mean (k,) of the vectors of a gallery, their directions (k, k) and deviations (k,)."""

    mean: Tensor
    directions: Tensor
    deviations: Tensor

    @classmethod
    def of(cls, gallery: Tensor, add_up: Callable[[Sequence[Tensor]], None]) -> Frame:
        """Return the frame of gallery vectors (M, k) float64.

        Args:
            gallery: those of this process.
            add_up: replaces tensors by their sums over the processes.
        """
        number, total = gallery.new_tensor(len(gallery)), gallery.sum(0)
        add_up([number, total])
        mean = total / number
        squares = (gallery - mean).T @ (gallery - mean)
        add_up([squares])
        variances, directions = torch.linalg.eigh(squares / number)
        deviations = variances.clamp_min(_LEAST * variances.max()).sqrt()
        return cls(mean, directions, torch.where(deviations > 0, deviations, 1))

    def queries(self, vectors: Tensor) -> Tensor:
        """Return vectors (N, k) of queries in this frame."""
        return vectors @ self.directions * self.deviations

    def gallery(self, vectors: Tensor) -> Tensor:
        """Return vectors (M, k) of a gallery in this frame."""
        return (vectors - self.mean) @ self.directions / self.deviations


def in_frame(
    queries: Tensor,
    gallery: Tensor,
    space: Space,
    add_up: Callable[[Sequence[Tensor]], None] = lambda _: None,
    largest: Callable[[float], float] = lambda length: length,
) -> tuple[Tensor, Tensor]:
    """Return vectors of queries, points (N, d), and of a gallery, points (M, d), in their frame.

    Their cosines have the order of the distances. ``add_up`` and ``largest`` join processes.
    """
    of_queries = space.query_vectors(queries.double())
    of_gallery = space.gallery_vectors(gallery.double())
    frame = Frame.of(of_gallery, add_up)
    of_gallery = frame.gallery(of_gallery)
    longest = largest(_longest(of_gallery))
    return _with_nothing(frame.queries(of_queries)), _of_length(of_gallery, longest)


def as_queries(points: Tensor, space: Space) -> Tensor:
    """Return vectors (N, k) of queries, float64, from points (N, d)."""
    return _with_nothing(space.query_vectors(points.double()))


def longest_of(points: Tensor, space: Space) -> float:
    """Return the length of the longest vector of a gallery of points (M, d)."""
    return _longest(space.gallery_vectors(points.double()))


def as_gallery(points: Tensor, space: Space, longest: float) -> Tensor:
    """Return vectors (M, k) of a gallery, float64 and all of length ``longest``."""
    return _of_length(space.gallery_vectors(points.double()), longest)


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
    queries, gallery = in_frame(points, points, space)
    return _unit(queries), _unit(gallery)


def _longest(vectors: Tensor) -> float:
    return float(torch.linalg.vector_norm(vectors, dim=1).max())


def _with_nothing(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, torch.zeros_like(vectors[:, :1])], 1)


def _of_length(vectors: Tensor, longest: float) -> Tensor:
    missing = longest**2 - vectors.square().sum(1, keepdim=True)
    return torch.cat([vectors, missing.clamp_min(0).sqrt()], 1)


def _unit(vectors: Tensor) -> NDArray[np.float64]:
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    found: NDArray[np.float64] = (vectors / torch.where(lengths == 0, 1, lengths)).numpy()
    return found
