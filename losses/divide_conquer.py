"""Divide and conquer: each slice of an embedding learns from a cluster of the data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from zoo.errors import UserError

from ._images import ImageLoss, require_ids
from ._inner import require_any_size
from ._shared import unit
from .margin import MarginLoss


class DivideConquerLoss(ImageLoss):
    """Cluster the training images, and train each slice of the embedding on one cluster.

    Every few epochs, all images are embedded, each slice is scaled to length 1, and k-means divides
    the images into as many clusters as there are slices. The sampler ``grouped`` draws each batch
    from one cluster k, and only slice k learns from it::

        L = l_k(x[slice k])

    with l_k a copy of ``loss`` for each slice. If a batch has images of several clusters, each
    slice learns from all of it with the share of its cluster as weight. At the end, from epoch
    ``merge`` on, batches come from all images, and the whole embedding learns with one more copy.
    A search compares all slices, each of length 1. New clusters are given to the slices so that as
    few images as possible change theirs.

    Set ``model.slices``, such as [32, 32, 32, 32], and ``sampler.name=grouped``. Called before
    :meth:`begin_epoch`, it is the loss of the whole embedding.

    Differs from the paper in:
        * an image that is alone of its class in a cluster moves to the one where most of its class
          are; the authors' code leaves it out until the next clustering.
        * the authors' code clusters the features before the embedding, and trains the whole
          embedding for some epochs on batches of clusters before it merges these.

    Args:
        level_sizes: of the slices; supplied by the run.
        num_images: of the training data; supplied by the run.
        loss: any without weights for classes; by default ``margin``, as in the paper.
        miner: picks pairs of a slice for its loss; ``distance_weighted`` in the paper. By default
            the loss uses all. ``miner`` of a config, in contrast, mines in the whole embedding.
        every: epochs between clusterings; 2 in the authors' configuration.
        merge: the first epoch, from 0, in which the whole embedding learns; by default none. The
            authors' command for In-Shop Clothes has 190 of 200.

    Shape:
        embeddings (N, sum of the sizes), labels (N,) any integers, image_ids (N,); returns a
        scalar. What a batch with nothing to learn from gives is up to the loss. A gallery has no
        meaning for it.

    Raises:
        UserError: fewer than two slices, numbers below 1, or a loss with weights for classes.

    Reference:
        Sanakoyeu, Tschernezki, Büchler, Ommer. Divide and Conquer the Embedding Space for Metric
        Learning. CVPR 2019, arXiv:1906.05990. Values from the authors' code.
    """

    paper: ClassVar[str] = (
        "Sanakoyeu et al. 2019, Divide and Conquer the Embedding Space for Metric Learning"
    )
    kind = "triplet"
    cost = "N²"
    sampler = "grouped"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_rotation": "a rotation mixes the slices, of which a batch trains one"
    }

    def __init__(
        self,
        level_sizes: list[int],
        num_images: int,
        loss: nn.Module | None = None,
        miner: nn.Module | None = None,
        every: int = 2,
        merge: int | None = None,
    ) -> None:
        super().__init__()
        if len(level_sizes) < 2:
            raise UserError(
                "divide_conquer trains slices of the embedding: set model.slices, such as "
                "[32, 32, 32, 32] for model.embedding_size=128"
            )
        if every < 1 or (merge is not None and merge < 1):
            raise UserError(f"every and merge must be at least 1, not {every} and {merge}")
        loss = MarginLoss() if loss is None else loss
        kind = getattr(loss, "kind", "")
        if kind in ("proxy", "classifier"):
            inner = type(loss).__name__
            raise UserError(f"divide_conquer: {inner} has weights for classes; choose another loss")
        require_any_size(loss, level_sizes, "divide_conquer")
        # As the loss says; those of PML, which say nothing, take mined pairs.
        self.mined = getattr(loss, "mined", True)  # type: ignore[misc]
        self.normalises = getattr(loss, "normalises", False)  # type: ignore[misc]
        self.level_sizes, self.num_images = list(level_sizes), num_images
        self.miner, self.every, self.merge = miner, every, merge
        self.losses = nn.ModuleList(copy.deepcopy(loss) for _ in level_sizes)
        self.whole = loss
        self.clusters: Tensor
        self.register_buffer("clusters", torch.zeros(num_images, dtype=torch.int64))
        self.is_divided = self.has_clusters = False

    @torch.no_grad()
    def begin_epoch(
        self, epoch: int, labels: Tensor, embed: Callable[[Sequence[int] | None], Tensor]
    ) -> NDArray[np.int64] | None:
        """Cluster the images in every few epochs; return the cluster of each, for the sampler."""
        if self.merge is not None and epoch >= self.merge:
            self.is_divided = False
            return np.zeros(len(labels), np.int64)
        self.is_divided = True
        if epoch % self.every and self.has_clusters:
            return None
        slices = torch.split(embed(None).float(), self.level_sizes, dim=1)
        unit_slices = torch.cat([unit(part) for part in slices], 1)
        found = _k_means(unit_slices.cpu().numpy(), len(slices), seed=epoch)
        if self.has_clusters:
            found = _renumbered(found, self.clusters.cpu().numpy(), len(slices))
        found = _without_singles(found, labels.cpu().numpy(), len(slices))
        self.clusters.copy_(torch.from_numpy(found))
        self.has_clusters = True
        return found

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the loss of the slices of the batch's clusters, or of the whole embedding."""
        if not self.is_divided:
            return self._of(self.whole, embeddings, labels, indices_tuple)
        ids = require_ids(self.ids, self.num_images, "divide_conquer")
        slices = torch.split(embeddings, self.level_sizes, dim=1)
        # All slices, those of other clusters with weight 0: a GPU would wait to know the cluster.
        values = [
            self._of(loss, part, labels, indices_tuple)
            for loss, part in zip(self.losses, slices, strict=True)
        ]
        of_cluster = self.clusters[ids][:, None] == torch.arange(len(slices), device=ids.device)
        return (torch.stack(values) * of_cluster.to(embeddings.dtype).mean(0)).sum()

    def _of(
        self, loss: nn.Module, x: Tensor, labels: Tensor, pairs: tuple[Tensor, ...] | None
    ) -> Tensor:
        """Return a loss of a slice or of the whole, with the pairs given or mined in it."""
        if pairs is None and self.miner is not None:
            pairs = self.miner(x.detach(), labels)
        value: Tensor = loss(x, labels) if pairs is None else loss(x, labels, pairs)
        return value

    def get_extra_state(self) -> dict[str, bool]:
        """Return whether the images are in clusters, and whether slices learn from these."""
        return {"is_divided": self.is_divided, "has_clusters": self.has_clusters}

    def set_extra_state(self, state: dict[str, bool]) -> None:
        """Continue from a saved state."""
        self.is_divided, self.has_clusters = state["is_divided"], state["has_clusters"]


def _k_means(vectors: NDArray[np.float32], count: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each of some vectors (n, d), of the best of five clusterings."""
    from sklearn.cluster import KMeans  # takes a second to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal vectors, which give fewer clusters
        # A map, since type checkers conclude from the signature that n_init must be text.
        options: dict[str, Any] = {"n_init": 5, "random_state": seed}
        k_means = KMeans(min(count, len(vectors)), **options)
        found: NDArray[np.int64] = k_means.fit_predict(vectors).astype(np.int64)
    return found


def _renumbered(
    found: NDArray[np.int64], before: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return clusters with the numbers that most of their images had before."""
    overlap = np.zeros((count, count), np.int64)
    np.add.at(overlap, (found, before), 1)
    sizes = overlap.sum(1)[:, None] + overlap.sum(0)
    _, numbers = linear_sum_assignment(sizes - 2 * overlap)  # images in one and not in the other
    renumbered: NDArray[np.int64] = numbers[found]
    return renumbered


def _without_singles(
    found: NDArray[np.int64], labels: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Move each image that is alone of its class in a cluster to the one with most of its class."""
    _, of_class = np.unique(labels, return_inverse=True)
    numbers = np.zeros((of_class.max() + 1, count), np.int64)
    np.add.at(numbers, (of_class, found), 1)
    alone = numbers[of_class, found] == 1
    return np.where(alone, numbers.argmax(1)[of_class], found)
