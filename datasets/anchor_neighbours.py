"""AnchorNeighboursSampler: batches of classes, each with those nearest to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from zoo.errors import UserError

from ._epochs import EpochBatches


class AnchorNeighboursSampler(EpochBatches):
    """Take some classes at random, the nearest classes of each, and a few images of every class.

    The anchor-neighbour sampling of the hierarchical triplet loss. At the start of an epoch, the
    current network embeds all images; the distance of two classes is the mean squared distance of
    their images on the unit sphere. For each batch, ``classes / neighbours`` anchor classes are
    drawn, with probability proportional to what is left of them in this epoch; to each, the nearest
    classes are added that the batch does not have yet, until it is one of ``neighbours``. An epoch
    ends when every image was drawn. Its length depends on how often the same neighbours come: it is
    between a pass through the images and ``neighbours`` passes.

    Args:
        labels: (N,) class of each image, any integers.
        embed: returns the embeddings (n, d) of images by index; supplied by the runner.
        classes: different classes of a batch, a multiple of ``neighbours``.
        per_class: images of each, at least 1; if a class has fewer, some are repeated.
        neighbours: classes that are drawn together, an anchor and those nearest to it; at least 2.
        seed: of the order; an epoch depends only on it, its number and the network.

    Raises:
        UserError: sizes are too small or do not divide, or there are too few classes.

    Reference:
        Ge, Huang, Dong, Scott. Deep Metric Learning with Hierarchical Triplet Loss. ECCV 2018,
        arXiv:1810.06951, section 4.2. In the paper the anchors are drawn alike, and an epoch is not
        defined.
    """

    paper: ClassVar[str] = "Ge et al. 2018, Deep Metric Learning with Hierarchical Triplet Loss"
    draws_late: ClassVar[bool] = True

    def __init__(
        self,
        labels: ArrayLike,
        embed: Callable[[list[int]], NDArray[np.floating[Any]]],
        classes: int,
        per_class: int,
        neighbours: int = 4,
        seed: int = 0,
    ) -> None:
        if neighbours < 2 or per_class < 1 or classes < 1 or classes % neighbours:
            raise UserError(
                f"sampler.classes={classes} must be a multiple of sampler.neighbours={neighbours}, "
                f"which is at least 2; sampler.per_class={per_class} is at least 1"
            )
        labels = np.asarray(labels)
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        self._images = np.split(order, starts[1:]) if len(labels) else []
        if len(self._images) < classes:
            raise UserError(
                f"batches of {classes} classes cannot be made: the data has {len(self._images)}; "
                "set sampler.classes to at most that"
            )
        super().__init__(classes * per_class, seed)
        self.classes, self.per_class, self.neighbours = classes, per_class, neighbours
        self._embed = embed
        self._means: NDArray[np.float64] | None = None  # of this epoch, once it has begun

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the means of the classes of an epoch that has begun."""
        means = self._means if self._batches is not None else None
        return {
            **super().state_dict(),
            "means": None if means is None else torch.from_numpy(means),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch that was next when the state was saved."""
        if state["means"] is None:  # an epoch that has not begun will see the network of then
            self._epoch_number, self._batch_number = state["epoch"], state["batch"]
            self._means = self._batches = None
            return
        self._means = np.asarray(state["means"], np.float64)
        super().load_state_dict(state)

    def _next(self) -> list[int]:
        batch = super()._next()
        if self._batches is None:  # this was the last of its epoch
            self._means = None
        return batch

    def _epoch(self, rng: np.random.Generator) -> Iterator[list[int]]:
        if self._means is None:
            self._means = self._class_means()
        decks = [rng.permutation(images) for images in self._images]
        drawn = np.zeros(len(decks), np.int64)
        sizes = np.array([len(deck) for deck in decks])
        while (drawn < sizes).any():
            chosen = self._draw(np.maximum(sizes - drawn, 0), rng)
            places = drawn[chosen, None] + np.arange(self.per_class)
            drawn[chosen] += self.per_class
            yield [
                int(decks[c][i % sizes[c]])
                for c, row in zip(chosen, places, strict=True)
                for i in row
            ]

    def _draw(self, left: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
        """Return the classes of a batch: anchors, each followed by its neighbours."""
        assert self._means is not None
        # The first of exponential times with rates `left` are a draw in proportion to it; those of
        # which nothing is left come after all others.
        times = rng.standard_exponential(len(left))
        order = np.argsort(np.where(left > 0, times / np.maximum(left, 1), 1e3 + times))
        free, chosen = np.ones(len(left), bool), []
        for anchor in order:
            if len(chosen) == self.classes:
                break
            if free[anchor]:
                free[anchor] = False
                # 2 - 2 a . b is the mean squared distance of two classes on the unit sphere.
                near = np.where(free, self._means @ self._means[anchor], -np.inf)
                nearest = np.argsort(-near, kind="stable")[: self.neighbours - 1]
                free[nearest] = False
                chosen += [int(anchor), *map(int, nearest)]
        return chosen

    def _class_means(self) -> NDArray[np.float64]:
        """Return the mean (C, d) of the embeddings on the unit sphere of each class."""
        found = np.asarray(self._embed(np.concatenate(self._images).tolist()), np.float64)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        found = found / np.where(lengths > 0, lengths, 1)
        ends = np.cumsum([len(images) for images in self._images])
        return np.stack([rows.mean(0) for rows in np.split(found, ends[:-1])])
