"""HardClassSampler: batches of classes that the network confuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from zoo.errors import UserError

Vectors = NDArray[np.floating[Any]]


class HardClassSampler(Sampler[list[int]]):
    """Take two images of each class of a batch; the classes are hard to distinguish.

    The hard negative class mining of the N-pair loss. For every batch:

    1. ``pool`` classes are drawn at random, and two images of each; the current network embeds
       them.
    2. The first class of the batch is random. Then, one by one, the class is added that violates
       the triplet constraint most with a class chosen before: with a, p the two images of one class
       and n an image of the other, the largest ``cos(a, n) - cos(a, p)`` over both roles.

    It costs a forward pass of the pool, which is worth it if there are many classes.

    A batch depends on the seed, its number and the network, so that a resumed run gets the same
    batches. Therefore it is drawn only when it is needed: nothing is loaded ahead.

    The paper does not specify the similarity (here the cosine) or how many classes are drawn (here
    ``pool``).

    Args:
        labels: (N,) class of each image, any integers; classes with one image are never drawn.
        classes: different classes of a batch, at least 2.
        pool: classes to choose from; by default twice as many, or all if there are fewer.
        seed: not negative.
        embed: returns the embeddings (n, d) of images by index; supplied by the runner.

    Raises:
        UserError: sizes are out of range, or too few classes have two images.

    Reference:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016,
        section 3.2.3.
    """

    paper: ClassVar[str] = (
        "Sohn 2016, Improved Deep Metric Learning with Multi-class N-pair Loss Objective"
    )
    draws_late: ClassVar[bool] = True
    per_class: ClassVar[int] = 2

    def __init__(
        self,
        labels: ArrayLike,
        embed: Callable[[list[int]], Vectors],
        classes: int,
        pool: int | None = None,
        seed: int = 0,
    ) -> None:
        labels = np.asarray(labels)
        order = np.argsort(labels, kind="stable")
        _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
        images = np.split(order, starts[1:])
        self._images = [of_class for of_class, n in zip(images, sizes, strict=True) if n > 1]
        have = len(self._images)
        if not 2 <= classes <= have:
            raise UserError(
                f"sampler.classes is {classes}; it must be from 2 to the number of classes with "
                f"two images or more, {have}"
            )
        if pool is not None and pool < classes:
            raise UserError(
                f"sampler.pool is {pool}; it must be at least sampler.classes, {classes}"
            )
        if seed < 0:
            raise UserError(f"seed is {seed}; it must not be negative")
        self.classes = classes
        self.pool = min(pool or 2 * classes, have)
        self.seed = seed
        self.batch_size = 2 * classes
        self._embed = embed
        self._batches = max(1, len(labels) // self.batch_size)
        self._number = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            batch = self._draw(np.random.default_rng([self.seed, self._number]))
            self._number += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next batch."""
        return {"batch": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with that batch."""
        self._number = state["batch"]

    def _draw(self, rng: np.random.Generator) -> list[int]:
        chosen = rng.choice(len(self._images), self.pool, replace=False)
        pairs = np.stack([rng.choice(self._images[c], 2, replace=False) for c in chosen])
        vectors = np.asarray(self._embed(pairs.ravel().tolist()), dtype=np.float64)
        hardness = _violations(vectors.reshape(self.pool, 2, -1))
        return pairs[_greedy(hardness, self.classes)].ravel().tolist()


def _violations(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (P, P) the largest violation of the triplet constraint between two classes.

    Args:
        pairs: (P, 2, d) embeddings of two images of each class.
    """
    lengths = np.linalg.norm(pairs, axis=2, keepdims=True)
    f = pairs / np.where(lengths > 0, lengths, 1)
    cosine = np.einsum("aid,bjd->aibj", f, f)  # (P, 2, P, 2)
    own = np.einsum("ad,ad->a", f[:, 0], f[:, 1])
    violation = cosine.max(axis=(1, 3)) - own[:, None]
    both: NDArray[np.float64] = np.maximum(violation, violation.T)
    return both


def _greedy(hardness: NDArray[np.float64], count: int) -> list[int]:
    """Return ``count`` classes, from the first on, each the hardest with one chosen before."""
    chosen = [0]  # the pool is in random order
    worst = hardness[0].copy()
    while len(chosen) < count:
        worst[chosen[-1]] = -np.inf
        chosen.append(int(worst.argmax()))
        worst = np.where(np.isneginf(worst), worst, np.maximum(worst, hardness[chosen[-1]]))
    return chosen
