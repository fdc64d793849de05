"""Checks of spaces: finite distances, and vectors whose inner products have their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.checks.batches import generator
from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, blaming
from zoo.registry import contracts

_QUERIES, _ITEMS, _SIZE = 12, 20, 8
_LENGTHS = (1e-6, 0.3, 1.0, 3.0, 30.0)  # of embeddings; a network may give any
_NEAR = 1e-6  # distances that differ by less, relatively, may come in any order


def _build(part: Part) -> Any:
    space = part.build()
    require(contracts.space(space))
    return space


def _embeddings(count: int, length: float = 1.0, seed: int = 0) -> Tensor:
    """Return embeddings (count, d) that are about as long as that."""
    drawn = torch.randn(count, _SIZE, generator=generator(seed), dtype=torch.float64)
    factor = torch.linspace(0.5, 1.5, count, dtype=torch.float64)[:, None]
    found: Tensor = length * factor * drawn / drawn.norm(dim=1, keepdim=True)
    return found


def _points(space: Any, embeddings: Tensor) -> Tensor:
    with blaming("its points()"):
        points: Tensor = space.points(embeddings)
    require(contracts.points(points, len(embeddings)))
    return points


def _distances(space: Any, queries: Tensor, items: Tensor) -> Tensor:
    with blaming("its distances()"):
        found: Tensor = space.distances(queries, items)
    return _of_all_pairs(found, "distances", queries, items)


def _products(space: Any, queries: Tensor, items: Tensor) -> Tensor:
    with blaming("its query_vectors() and gallery_vectors()"):
        found: Tensor = space.query_vectors(queries) @ space.gallery_vectors(items).T
    return _of_all_pairs(found, "products of vectors", queries, items)


def _of_all_pairs(found: Tensor, what: str, queries: Tensor, items: Tensor) -> Tensor:
    if found.shape != (len(queries), len(items)):
        raise CheckFailedError(
            f"its {what} of {len(queries)} and {len(items)} points have shape "
            f"{tuple(found.shape)}, not {(len(queries), len(items))}",
            "shape",
        )
    return found


def _queries_and_items(space: Any) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield points of embeddings of each length, and others."""
    for length in _LENGTHS:
        points, items = (_points(space, _embeddings(_ITEMS, length, seed)) for seed in (0, 1))
        yield length, points, items


def check_points(part: Part) -> None:
    """``points`` gives a finite row for each embedding, of any length, whatever the others are."""
    space = _build(part)
    for length in (0.0, *_LENGTHS, 1e4):
        x = _embeddings(_ITEMS, length)
        points = _points(space, x)
        if not points.isfinite().all():
            raise CheckFailedError(f"points of embeddings of length {length:g} are not finite")
        if not torch.allclose(_points(space, x[:3]), points[:3]):
            raise CheckFailedError("the point of an embedding depends on the others", "batch")


def check_distances(part: Part) -> None:
    """``distances`` gives finite numbers (N, M), the smallest of them for equal points."""
    space = _build(part)
    for length in _LENGTHS:
        points = _points(space, _embeddings(_ITEMS, length))
        found = _distances(space, points[:_QUERIES], points)
        if not found.isfinite().all():
            raise CheckFailedError(f"distances at length {length:g} are not finite", "finite")
        own = found[range(_QUERIES), range(_QUERIES)]
        if not torch.allclose(found.min(1).values, own, atol=1e-6):
            raise CheckFailedError(
                f"at length {length:g} another point is nearer to a point than itself", "itself"
            )


def check_order(part: Part) -> None:
    """Items in the order of their inner products with a query are in the order of distances.

    ``query_vectors`` and ``gallery_vectors`` give the two vectors of a product. Evaluation and
    search see only these; a loss sees ``distances``.
    """
    space = _build(part)
    for length, points, items in _queries_and_items(space):
        distances = _distances(space, points, items)
        nearest_first = _products(space, points, items).argsort(1, descending=True)
        steps = distances.gather(1, nearest_first).diff(dim=1)
        if (steps < -_NEAR * distances.abs().max()).any():
            raise CheckFailedError(
                f"at length {length:g} an item with a larger inner product is farther", "order"
            )


def check_distances_of(part: Part) -> None:
    """``distances_of(products, points)`` gives the distances again, which a search prints."""
    space = _build(part)
    for length, points, items in _queries_and_items(space):
        products = _products(space, points, items)
        with blaming("its distances_of()"):
            found = space.distances_of(products, points)
        _of_all_pairs(found, "distances_of()", points, items)
        expected = _distances(space, points, items)
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
            worst = int((found - expected).abs().argmax())
            raise CheckFailedError(
                f"at length {length:g} it gives {float(found.flatten()[worst]):.4g} where "
                f"distances() gives {float(expected.flatten()[worst]):.4g}",
                "distance",
            )


def check_gradient(part: Part) -> None:
    """Distances have finite gradients in embeddings, where points are equal too."""
    space = _build(part)
    for length in (0.0, *_LENGTHS):
        x = _embeddings(_ITEMS, length)
        x[1] = x[0]
        x.requires_grad_()
        points = _points(space, x)
        with blaming("its backward pass"):
            (gradient,) = torch.autograd.grad(_distances(space, points, points).sum(), x)
        if not gradient.isfinite().all():
            raise CheckFailedError(f"the gradient at length {length:g} is not finite", "gradient")


def check_float32(part: Part) -> None:
    """In float32, in which networks are trained, distances are those of float64 to a thousandth."""
    space = _build(part)
    for length in _LENGTHS[1:]:
        x, y = (_embeddings(_ITEMS, length, seed) for seed in (0, 1))
        exact = _distances(space, _points(space, x), _points(space, y))
        found = _distances(space, _points(space, x.float()), _points(space, y.float()))
        if not torch.allclose(found.double(), exact, rtol=1e-3, atol=1e-3 * length):
            raise CheckFailedError(f"distances at length {length:g} are inexact", "float32")
