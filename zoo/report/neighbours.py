"""The exact nearest images of some queries."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sides: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"

_BLOCK = 64  # queries at a time, against all images


class Nearest(NamedTuple):
    """The neighbours of each query, nearest first: indices and cosines, (queries, count) each."""

    indices: NDArray[np.int64]
    cosines: NDArray[np.float64]


def nearest(
    sides: Sides, labels: NDArray[np.int64], queries: NDArray[np.int64], count: int = 10
) -> Nearest:
    """Return the images with the largest cosine to each query, without the query itself.

    Among equal cosines, images of another class come first: ties count against the query, as in
    :mod:`zoo.evaluate`.

    Args:
        sides: all images as queries and as gallery, (N, k) each, of length 1 or 0.
        labels: (N,).
        queries: (n,) indices of images.
        count: how many to return; fewer if there are fewer images.
    """
    own, vectors = sides
    count = min(count, len(vectors) - 1)
    indices = np.empty((len(queries), count), np.int64)
    cosines = np.empty((len(queries), count))
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
        similar = own[block] @ vectors.T
        similar[np.arange(len(block)), block] = -np.inf
        for row, query in enumerate(block.tolist()):
            order = np.lexsort((labels == labels[query], -similar[row].round(12)))[:count]
            indices[start + row], cosines[start + row] = order, similar[row, order]
    return Nearest(indices, cosines)


def first_right(sides: Sides, labels: NDArray[np.int64], query: int) -> tuple[int, float]:
    """Return the nearest other image of a query's class, which must exist, and its cosine."""
    own = np.flatnonzero(labels == labels[query])
    own = own[own != query]
    cosines = sides[1][own] @ sides[0][query]
    best = int(cosines.round(12).argmax())
    return int(own[best]), float(cosines[best])
