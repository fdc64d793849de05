"""Batches that losses are checked on, and shrinking a batch that shows a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DIMENSIONS = 6
CLASSES = 8
IMAGES = 256  # of made-up training data; more than a batch has
_SHOWN = 12  # images that a message lists
_SECONDS = 3.0  # for shrinking one batch


class TrialBatch(NamedTuple):
    """Embeddings x (N, d) in float64 and labels y (N,)."""

    x: Tensor
    y: Tensor
    given_ids: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """The place of each image in the training data; by default 0 to N - 1."""
        return torch.arange(len(self.y)) if self.given_ids is None else self.given_ids

    def rows(self, which: Tensor | Sequence[int] | slice) -> TrialBatch:
        """Return the chosen images, in that order."""
        return TrialBatch(self.x[which], self.y[which], self.ids[which])

    def split(self) -> tuple[TrialBatch, TrialBatch]:
        """Return queries, a third of the images, and a gallery of the others."""
        queries = torch.arange(len(self.y)) % 3 == 0
        return self.rows(queries), self.rows(~queries)

    def __str__(self) -> str:
        count = f"{len(self.y)} image" + ("s" if len(self.y) != 1 else "")
        lines = [
            f"  label {label}: [{', '.join(f'{v:.3g}' for v in row)}]"
            for row, label in zip(self.x.tolist(), self.y.tolist(), strict=True)
        ]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"  and {len(lines) - _SHOWN} more"]
        return "\n".join([f"{count}:", *lines])


def generator(seed: int) -> torch.Generator:
    """Return a new generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def clusters(classes: int, per_class: int, norm: float = 1.0, seed: int = 0) -> TrialBatch:
    """Return overlapping classes in shuffled order; lengths vary around ``norm``."""
    random = generator(seed)
    y = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(classes, DIMENSIONS, generator=random, dtype=torch.float64)
    x = centres[y] + 0.7 * torch.randn(len(y), DIMENSIONS, generator=random, dtype=torch.float64)
    lengths = 0.7 + 0.7 * torch.rand(len(y), 1, generator=random, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True) * lengths * norm
    return TrialBatch(x, y).rows(torch.randperm(len(y), generator=random))


def general() -> Iterator[TrialBatch]:
    """Yield two ordinary batches: few large classes and many small ones, of different norms."""
    yield clusters(3, 4, norm=0.5, seed=1)
    yield clusters(6, 2, norm=3.0, seed=2)


def around(directions: Tensor, per_class: int, spread: float, norm: float = 1.0) -> TrialBatch:
    """Return tight classes around the given directions (classes, d)."""
    y = torch.arange(len(directions)).repeat_interleave(per_class)
    noise = torch.randn(len(y), DIMENSIONS, generator=generator(3), dtype=torch.float64)
    return TrialBatch(norm * (directions[y].double() + spread * noise), y)


def crossed(norm: float) -> TrialBatch:
    """Return classes of two images, one at either end of an axis: every positive pair is violated.

    Cosines are about -0.96 within classes, and 0.96 to half of the negatives; at scale 64 logits
    differ by over 100.
    """
    axis = torch.eye(DIMENSIONS)[:1]
    batch = around(torch.cat([axis, -axis]).repeat(6, 1), 1, spread=0.08, norm=norm)
    return TrialBatch(batch.x, torch.arange(6).repeat_interleave(2))


def misplaced(norm: float) -> tuple[TrialBatch, TrialBatch]:
    """Return well separated classes, and the same with one image inside another class."""
    batch = around(torch.eye(DIMENSIONS)[:4], 4, spread=0.05, norm=norm)
    x = batch.x.clone()
    x[0] += x[4] - 2 * x[1]  # opposite to its own class and beside the other
    return batch, TrialBatch(x, batch.y)


def shrink(batch: TrialBatch, fails: Callable[[TrialBatch], bool]) -> TrialBatch:
    """Drop classes and images while the batch still fails; stop after three seconds.

    The returned batch fails; unless time ran out, nothing more can be dropped from it.
    """
    deadline = time.monotonic() + _SECONDS
    smaller = _smaller(batch)
    while time.monotonic() < deadline:
        candidate = next(smaller, None)
        if candidate is None:
            break
        if fails(candidate):
            batch, smaller = candidate, _smaller(candidate)
    return batch


def _smaller(batch: TrialBatch) -> Iterator[TrialBatch]:
    """Yield the batch without a class, without an image of every class, and without an image."""
    classes = sorted(set(batch.y.tolist()))
    if len(classes) > 1:
        yield from (batch.rows((batch.y != c).nonzero().flatten()) for c in classes)
    first = torch.stack([(batch.y == c).nonzero()[0, 0] for c in classes])
    others = torch.ones(len(batch.y), dtype=torch.bool)
    others[first] = False
    if others.any():
        yield batch.rows(others)
    if len(batch.y) > 1:
        for i in range(len(batch.y)):
            yield batch.rows([j for j in range(len(batch.y)) if j != i])
