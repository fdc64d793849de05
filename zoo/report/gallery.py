"""Queries with the images they find: the worst failures first, then some that went well."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.base import Space
from zoo.evaluation import spaces
from zoo.evaluation.recall import NO_MATCH
from zoo.report.neighbours import Sides, first_right, nearest

_RIGHT_SHARE = 4  # one query in four is one that went well


class GalleryImage(NamedTuple):
    """A found image: its index in the test split, its class, and whether that is the query's."""

    image: int
    label: int
    right: bool
    cosine: float


class Query(NamedTuple):
    """A query, the rank r(q) of the first image of its class, and the ten nearest images.

    ``later`` is the first image of its class, if that is not among the ten.
    """

    image: int
    label: int
    rank: int
    found: list[GalleryImage]
    later: GalleryImage | None


def choose(ranks: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return queries: failures by r(q), the largest first, then right ones, evenly spread.

    Queries whose class has no other image cannot succeed, and are left out.
    """
    failed = np.flatnonzero((ranks > 1) & (ranks < NO_MATCH))
    right = np.flatnonzero(ranks == 1)
    failed = failed[np.argsort(-ranks[failed].astype(np.int64), kind="stable")]
    few = min(len(right), max(count // _RIGHT_SHARE, count - len(failed)))
    spread = np.linspace(0, max(0, len(right) - 1), few).round().astype(np.int64)
    return np.concatenate([failed[: count - few], right[spread]])


def gallery(
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    ranks: NDArray[np.int32],
    count: int,
    space: Space | None = None,
) -> list[Query]:
    """Return queries of the test split with their ten nearest images.

    In a space, images are compared by its distance, and have no cosine.
    """
    queries = choose(ranks, count)
    sides = spaces.compared(embeddings, space)
    found = nearest(sides, labels, queries)
    if space is not None:
        found.cosines.fill(np.nan)
    return [
        Query(
            query,
            int(labels[query]),
            int(ranks[query]),
            _shown(query, labels, indices, cosines),
            _later(sides, labels, query) if len(indices) < ranks[query] < NO_MATCH else None,
        )
        for query, indices, cosines in zip(queries.tolist(), *found, strict=True)
    ]


def images(queries: list[Query]) -> set[int]:
    """Return the indices of all images that a gallery shows."""
    shown = (one.image for q in queries for one in (*q.found, q.later) if one)
    return {q.image for q in queries}.union(shown)


def _shown(
    query: int, labels: NDArray[np.int64], indices: NDArray[np.int64], cosines: NDArray[np.float64]
) -> list[GalleryImage]:
    return [
        GalleryImage(index, int(labels[index]), bool(labels[index] == labels[query]), cosine)
        for index, cosine in zip(indices.tolist(), cosines.tolist(), strict=True)
    ]


def _later(sides: Sides, labels: NDArray[np.int64], query: int) -> GalleryImage:
    image, cosine = first_right(sides, labels, query)
    return GalleryImage(image, int(labels[image]), True, cosine)
