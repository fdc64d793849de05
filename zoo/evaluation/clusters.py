"""Clusters of embeddings by k-means, for NMI and AMI."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.evaluation import few_images
from zoo.evaluation.items import Array, by_class, check_items

RESTARTS = 3
STEPS = 30
SEED = 0  # for all runs, independent of their own seeds


class Clusters(NamedTuple):
    """A clustering."""

    of: NDArray[np.int64]  # (n,) the cluster of each item
    how: dict[str, Any]  # the library and the settings that made it


def clusters(embeddings: Array, labels: Array) -> Clusters:
    """Return the best of three clusterings by k-means, with as many clusters as there are classes.

    Embeddings are first scaled to length 1, so that the nearest centre has the largest cosine.
    FAISS is used if it is installed, else scikit-learn; they start from different centres and end
    in different clusters, so do not compare scores of one with scores of the other. Both run three
    times from a fixed seed, with at most 30 steps; the clustering with the smallest sum of squared
    distances counts.

    Warns:
        UserWarning: if a class has fewer than ten images on average.
    """
    vectors, classes = check_items(embeddings, labels)
    unit = by_class(vectors, torch.arange(len(vectors), device=vectors.device))[0]
    count = len(np.unique(classes.cpu().numpy()))
    few = few_images.warning(len(classes), count)
    if few:
        warnings.warn(few, stacklevel=2)
    found, by = _k_means(unit.fast.cpu().numpy(), count)
    how = {"by": by, "clusters": count, "restarts": RESTARTS, "steps": STEPS, "seed": SEED}
    return Clusters(found.astype(np.int64), how)


def _k_means(unit: NDArray[np.float32], count: int) -> tuple[NDArray[Any], str]:
    """Return the clusters of items, and the library that made them."""
    try:
        import faiss
    except ImportError:
        return _k_means_of_sklearn(unit, count)
    k_means: Any = faiss.Kmeans(
        unit.shape[1],
        count,
        niter=STEPS,
        nredo=RESTARTS,
        seed=SEED,
        min_points_per_centroid=1,  # no warning on stderr
        max_points_per_centroid=len(unit),  # all of them, not a sample
    )
    k_means.train(unit)
    return k_means.index.search(unit, 1)[1][:, 0], f"faiss {faiss.__version__}"


def _k_means_of_sklearn(unit: NDArray[np.float32], count: int) -> tuple[NDArray[Any], str]:
    import sklearn
    from sklearn.cluster import KMeans

    # A map, since type checkers conclude from the signature that n_init must be text.
    options: dict[str, Any] = {"n_init": RESTARTS, "max_iter": STEPS, "random_state": SEED}
    return KMeans(count, **options).fit_predict(unit), f"scikit-learn {sklearn.__version__}"
