"""A map of the test embedding by t-SNE; the same input gives the same map."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.base import Space
from zoo.errors import UserError

SEED = 0
PERPLEXITY = 30
_FEWEST = 5


def sample(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return sorted indices of ``count`` images, about the same share of each class; or of all."""
    if len(labels) <= count:
        return np.arange(len(labels))
    random = np.random.default_rng(SEED)
    place = np.empty(len(labels))
    for label in np.unique(labels):  # spread each class evenly over 0..1, then take the lowest
        own = random.permutation(np.flatnonzero(labels == label))
        place[own] = (np.arange(len(own)) + random.random()) / len(own)
    return np.sort(np.argsort(place, kind="stable")[:count])


def vectors(embeddings: NDArray[np.float32], space: Space | None) -> NDArray[np.float32]:
    """Return what a map is made of (N, d): embeddings of length 1, or the points of a space."""
    if space is not None:
        return space.points(torch.from_numpy(embeddings).double()).float().numpy()
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def project(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a place (N, 2) for each of some vectors (N, d), by their distances.

    Raises:
        UserError: if there are too few embeddings, or all are the same.
    """
    from sklearn.manifold import TSNE

    if len(vectors) < _FEWEST:
        raise UserError(f"there are only {len(vectors)} images, too few for a map")
    if not np.ptp(vectors, axis=0).max() > 1e-6:
        raise UserError("all embeddings are the same, so there is nothing to lay out")
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    model = TSNE(init="pca", perplexity=perplexity, random_state=SEED)
    places: NDArray[np.float32] = model.fit_transform(vectors)
    return places


def with_room(places: NDArray[np.float32], share: float) -> list[int]:
    """Return items whose pictures do not cover each other, chosen in order.

    Args:
        places: (N, 2) on the map.
        share: the side of a picture as a share of the side of the map.
    """
    spread = np.ptp(places, axis=0)
    grid = (places - places.min(0)) / np.where(spread == 0, 1, spread) / share
    chosen: list[int] = []
    for n in range(len(grid)):
        if not chosen or (np.abs(grid[chosen] - grid[n]).max(1) >= 1).all():
            chosen.append(n)
    return chosen
