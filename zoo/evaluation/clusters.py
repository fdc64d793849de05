"""Embeddings clustered by k-means: what NMI and AMI are made of."""

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
SEED = 0  # the same for all runs, whatever they were trained with


class Clusters(NamedTuple):
    """A clustering.

    Attributes:
        of: (n,) the cluster of each item.
        how: by what it was made, and how.
    """

    of: NDArray[np.int64]
    how: dict[str, Any]


def clusters(embeddings: Array, labels: Array) -> Clusters:
    """Return the best of three clusterings by k-means, with as many clusters as there are classes.

    Embeddings are scaled to length 1 first, so that the nearest centre is that of the largest
    cosine. FAISS does it where it is installed, else scikit-learn; from other centres at the start
    they end in other clusters, so scores by the one are not to be compared with scores by the
    other. Both begin from a fixed seed and take at most 30 steps, three times; the clustering with
    the smallest sum of squared distances counts.

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
    """Return the clusters of items, and what made them."""
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
        min_points_per_centroid=1,  # no complaint on stderr
        max_points_per_centroid=len(unit),  # all of them, not a sample
    )
    k_means.train(unit)
    return k_means.index.search(unit, 1)[1][:, 0], f"faiss {faiss.__version__}"


def _k_means_of_sklearn(unit: NDArray[np.float32], count: int) -> tuple[NDArray[Any], str]:
    import sklearn
    from sklearn.cluster import KMeans

    # A map, since its signature leads type checkers to believe that n_init must be text.
    options: dict[str, Any] = {"n_init": RESTARTS, "max_iter": STEPS, "random_state": SEED}
    return KMeans(count, **options).fit_predict(unit), f"scikit-learn {sklearn.__version__}"
