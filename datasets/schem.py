"""SCHEMSampler: classes and images that are hard for an anchor, found by class signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from zoo.errors import UserError

Vectors = NDArray[np.float64]


class SCHEMSampler(Sampler[list[int]]):
    """Draw classes that are near an anchor's, and of these the images that are nearest to it.

    Stochastic class-based hard example mining. Each class has a signature, a vector that follows
    the embeddings of its images while these are seen anyway. A batch has one anchor class, or
    several with an equal share of the classes. For each:

    1. ``per_class`` images of the anchor class are embedded.
    2. The classes are ordered by the largest cosine of their signature with one of these. The
       ``alpha * others`` nearest are the pool, with alpha drawn from 3, 4, 5 and ``others`` the
       classes that are wanted; these are drawn from the pool at random.
    3. All their images, or ``most`` of them at random, are embedded. Of each class, ``per_class``
       images are drawn from the ``beta * per_class`` with the largest cosine with an anchor.

    In an epoch, every class is an anchor, in random order; the last batch is filled up with classes
    of the first.

    All embeddings are of the current network, so a batch costs a forward pass of its candidates.
    A batch depends on the seed, its number, the network and the signatures, and is drawn only when
    it is needed: nothing is loaded ahead.

    Differs from the paper in:
        * the signatures. The paper learns them as the weights of a softmax classifier, in a loss
          that is added. Here they are running means of embeddings on the unit sphere; a class that
          was not seen yet has a random direction.
        * the batch has as many images of each class, so that all losses can use it. In a public
          reproduction of the paper, the images are the hardest of the pool, of whatever class.

    Args:
        labels: (N,) class of each image, any integers.
        embed: returns the embeddings (n, d) of images by index; supplied by the runner.
        classes: different classes of a batch, a multiple of ``anchors``.
        per_class: images of each, at least 1; if a class has fewer, some are repeated.
        anchors: anchor classes of a batch, fewer than ``classes``.
        beta: how many times ``per_class`` images of a class are candidates.
        most: images of a class that are embedded at most.
        momentum: of the signatures: ``momentum old + (1 - momentum) new``.
        seed: not negative.

    Raises:
        UserError: numbers are out of range, or there are too few classes.

    Reference:
        Suh, Han, Kim, Lee. Stochastic Class-based Hard Example Mining for Deep Metric Learning.
        CVPR 2019. The text was not at hand; steps and numbers from the reproduction by johmicrot.
    """

    paper: ClassVar[str] = (
        "Suh et al. 2019, Stochastic Class-based Hard Example Mining for Deep Metric Learning"
    )
    draws_late: ClassVar[bool] = True

    def __init__(
        self,
        labels: ArrayLike,
        embed: Callable[[list[int]], NDArray[np.floating[Any]]],
        classes: int,
        per_class: int,
        anchors: int = 1,
        beta: int = 2,
        most: int = 32,
        momentum: float = 0.5,
        seed: int = 0,
    ) -> None:
        labels = np.asarray(labels)
        found = np.unique(labels)
        self._images = [np.flatnonzero(labels == label) for label in found]
        if per_class < 1 or not 1 <= anchors < classes or classes % anchors:
            raise UserError(
                f"sampler.classes={classes} must be a multiple of sampler.anchors={anchors}, and "
                f"more; sampler.per_class={per_class} and anchors are at least 1"
            )
        if len(found) < classes:
            raise UserError(
                f"batches of {classes} classes cannot be made: the data has {len(found)}; set "
                "sampler.classes to at most that"
            )
        if beta < 1 or most < per_class or not 0 <= momentum < 1 or seed < 0:
            raise UserError(
                f"sampler.beta={beta} must be at least 1, sampler.most={most} at least per_class, "
                f"sampler.momentum={momentum} from 0 to below 1, and seed={seed} not negative"
            )
        self.classes, self.per_class, self.anchors = classes, per_class, anchors
        self.beta, self.most, self.momentum, self.seed = beta, most, momentum, seed
        self.batch_size = classes * per_class
        self._embed = embed
        self._number = 0
        self._signatures: Vectors | None = None  # (C, d), once an embedding shows d

    def __len__(self) -> int:
        return (len(self._images) + self.anchors - 1) // self.anchors

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            batch = self._draw(np.random.default_rng([self.seed, self._number]))
            self._number += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next batch, and the signatures."""
        drawn = None if self._signatures is None else torch.tensor(self._signatures)
        return {"batch": self._number, "signatures": drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with that batch."""
        signatures = state["signatures"]
        self._number = state["batch"]
        self._signatures = None if signatures is None else signatures.double().clone().numpy()

    def _draw(self, rng: np.random.Generator) -> list[int]:
        batch: list[int] = []
        anchors = self._anchors()
        taken = set(anchors)
        for anchor in anchors:
            images = self._some(anchor, self.per_class, rng)
            f = self._see([anchor], [images])
            others = self._others(f, taken, rng)
            taken |= set(others)
            candidates = [self._some(c, min(self.most, len(self._images[c])), rng) for c in others]
            g = self._see(others, candidates)
            hardness = np.split((g @ f.T).max(1), np.cumsum([len(c) for c in candidates])[:-1])
            batch += images.tolist()
            for of_class, hard in zip(candidates, hardness, strict=True):
                hardest = of_class[np.argsort(-hard, kind="stable")[: self.beta * self.per_class]]
                batch += _draw_some(hardest, self.per_class, rng).tolist()
        return batch

    def _anchors(self) -> list[int]:
        """Return the anchor classes of this batch: a part of a random order of all classes."""
        epoch, place = divmod(self._number, len(self))
        order = np.random.default_rng([self.seed, epoch, 1]).permutation(len(self._images))
        mine = np.arange(place * self.anchors, (place + 1) * self.anchors)
        return [int(c) for c in order.take(mine, mode="wrap")]

    def _some(self, c: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        return _draw_some(self._images[c], count, rng)

    def _others(self, f: Vectors, taken: set[int], rng: np.random.Generator) -> list[int]:
        """Return the classes that are added to an anchor class with embeddings f (n, d)."""
        assert self._signatures is not None
        wanted = self.classes // self.anchors - 1
        nearness = (self._signatures @ f.T).max(1)
        nearness[list(taken)] = -np.inf
        free = len(nearness) - len(taken)
        pool = np.argsort(-nearness, kind="stable")[: min(free, int(rng.integers(3, 6)) * wanted)]
        return [int(c) for c in rng.choice(pool, wanted, replace=False)]

    def _see(self, classes: list[int], images: list[NDArray[np.intp]]) -> Vectors:
        """Return the embeddings of images of some classes, whose signatures follow them."""
        found = np.asarray(self._embed(np.concatenate(images).tolist()), np.float64)
        f = _unit(found)
        if self._signatures is None:
            random = np.random.default_rng(self.seed).normal(size=(len(self._images), f.shape[1]))
            self._signatures = _unit(random)
        parts = np.split(f, np.cumsum([len(part) for part in images])[:-1])
        for c, part in zip(classes, parts, strict=True):
            old, new = self._signatures[c], part.mean(0)
            self._signatures[c] = _unit(self.momentum * old + (1 - self.momentum) * new)
        return f


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Vectors = vectors / np.where(lengths > 0, lengths, 1)
    return scaled


def _draw_some(images: NDArray[np.intp], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return so many of some images in random order, each as often as any other."""
    times = -(-count // len(images))
    return np.concatenate([rng.permutation(images) for _ in range(times)])[:count]
