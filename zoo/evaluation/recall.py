"""Exact Recall@K: one definition, and the same ranks from every backend, device and block size.

The similarity is the cosine in double precision; a zero vector has cosine 0 with everything, and
differences below ``TIE`` are ties. The rank of a query is

    r(q) = 1 + #{ items i of another class : cos(q, i) >= max over j of q's class of cos(q, j) }

and Recall@K is the mean over all queries of [r(q) <= K]. The query itself is left out of its class
by its index; ties count against it, so that a collapsed embedding scores 0.

How it is made fast: the best match of each query is found in float64, which is cheap because each
query is compared only with its own class. The large product runs in float32, whose error has a
proven bound; only pairs that this bound leaves undecided are computed again in float64.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UserError, did_you_mean
from zoo.evaluation import faiss
from zoo.evaluation.items import (
    TIE,
    TILE_SIDE,
    Array,
    Items,
    Shape,
    arrange,
    blocks,
    by_class,
    check_items,
)
from zoo.support.checked import Count, checked, shown
from zoo.support.precision import full_float32

NO_MATCH = 2**31 - 1
"""The rank of a query whose class has no other item; it is above every K."""

BACKENDS = ("torch", "faiss")

_DENSE = 32  # from one undecided pair in 32 on, a float64 product is cheaper than gathering pairs
_MARGIN = 8  # extra length of a FAISS list, for the query itself and near ties


class Recall(dict[int, float]):
    """Recall@K as ``{K: fraction}``, with the ranks it was computed from.

    Attributes:
        ranks: (queries,) int32 on the CPU, the r(q) in the order given; ``NO_MATCH`` where none.
        queries: how many queries there were.
        unmatched: how many of them have no other item of their class; they score 0.
    """

    @checked
    def __init__(self, ranks: Tensor, ks: Iterable[Count]) -> None:
        super().__init__({k: int((ranks <= k).sum()) / len(ranks) for k in ks})
        self.ranks = ranks
        self.queries = len(ranks)
        self.unmatched = int((ranks == NO_MATCH).sum())

    def __repr__(self) -> str:
        unmatched = f", {self.unmatched} unmatched" if self.unmatched else ""
        return f"Recall({dict(self)}, {self.queries} queries{unmatched})"


def recall_at_k(
    embeddings: Array,
    labels: Array,
    ks: Iterable[int],
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    backend: str = "torch",
    block: int | None = None,
) -> Recall:
    """Return Recall@K for every K of ``ks``, in one pass.

    Arguments are those of :func:`ranks`. With backend "faiss", all ranks above the largest K are
    returned as that K + 1.

    Raises:
        UserError: as :func:`ranks`, or if ``ks`` are not positive integers.
    """
    ks = _check_ks(ks)
    _check_backend(backend)
    limit = max(ks) if backend == "faiss" else None
    found = ranks(
        embeddings,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        backend=backend,
        limit=limit,
        block=block,
    )
    return Recall(found, ks)


@torch.no_grad()
def ranks(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    backend: str = "torch",
    limit: int | None = None,
    block: int | None = None,
) -> Tensor:
    """Return r(q) of every query, (n,) int32 on the CPU; ``NO_MATCH`` for one without a match.

    The work is done on the device of ``embeddings``, in memory linear in the number of items.

    Args:
        embeddings: (n, d) the queries, of any float type; they need not be normalised.
        labels: (n,) their classes, of any integer type and value.
        gallery: (m, d) the items to retrieve from. Without it each query retrieves from the other
            queries; with it no item is left out.
        gallery_labels: (m,) the classes of the gallery.
        backend: "torch", or "faiss", which searches a flat index and leaves to torch the queries
            that lists of about ``limit`` items cannot decide.
        limit: ranks above it are returned as ``limit + 1``; backend "faiss" needs it.
        block: side of the tiles of the similarity matrix; it affects only speed and memory.

    Raises:
        UserError: shapes, types or options do not match, or an embedding is NaN or infinite.
    """
    _check_options(backend, limit, block)
    if (gallery is None) != (gallery_labels is None):
        raise UserError("gallery and gallery_labels go together: give both or neither")
    vectors, classes = check_items(embeddings, labels)
    others, other_classes = vectors, classes
    if gallery is not None and gallery_labels is not None:
        others, other_classes = check_items(gallery, gallery_labels, "gallery", vectors)
    with full_float32(vectors.device):
        classes, other_classes, shapes = arrange(classes, other_classes)
        queries, order = by_class(vectors, classes)
        found_in = queries if gallery is None else by_class(others, other_classes)[0]
        side = block or TILE_SIDE[vectors.device.type]
        best = _best_match(queries, found_in, shapes, side)
        task = _Retrieval(queries, found_in, best, side)
        if limit is None or backend == "torch":
            ahead = task.count()
        else:
            ahead = task.count_listed(limit)
    found = 1 + (ahead if limit is None else ahead.clamp(max=limit))
    found.masked_fill_(best == -torch.inf, NO_MATCH)
    return torch.empty_like(found).index_copy_(0, order, found).int().cpu()


def _best_match(queries: Items, gallery: Items, shapes: list[Shape], side: int) -> Tensor:
    """Return the largest cosine of each query within its class, (n,) float64, or -inf.

    Classes of one shape are one batched product, split into parts of at most ``side``^2 cosines.
    """
    best = queries.exact.new_full((len(queries.exact),), -torch.inf)
    row = col = 0
    for shape in shapes:
        rows, cols = shape.classes * shape.queries, shape.classes * shape.gallery
        if rows and cols:
            mine = queries.exact[row : row + rows].view(shape.classes, shape.queries, -1)
            theirs = gallery.exact[col : col + cols].view(shape.classes, shape.gallery, -1)
            into = best[row : row + rows].view(shape.classes, shape.queries)
            for part in blocks(shape.classes, side**2 // (shape.queries * shape.gallery)):
                for slab in blocks(shape.queries, side**2 // shape.gallery):
                    cosine = mine[part, slab] @ theirs[part].mT
                    if gallery is queries:  # by index: equal items other than the query count
                        cosine.diagonal(slab.start, 1, 2).fill_(-torch.inf)
                    into[part, slab] = cosine.amax(2)
        row, col = row + rows, col + cols
    return best


class _Retrieval:
    """Counts, for each query, the items of other classes that rank ahead of its best match.

    The error of a cosine in float32 is below ``slack``: above the first of two ``limits`` an item
    is certainly ahead, below the second it is not. Those between are compared with ``floor`` in
    float64.
    """

    def __init__(self, queries: Items, gallery: Items, best: Tensor, side: int) -> None:
        self.queries, self.gallery, self.best, self.side = queries, gallery, best, side
        # |fl(x.y) - x.y| <= d u |x||y| for any order of summation, u = 2^-24 (Jeannerod and Rump,
        # 2013); the rest covers the rounding of both vectors and of the two limits.
        slack = (queries.exact.shape[1] + 8) * 2**-24
        reach = best.masked_fill(best == -torch.inf, torch.inf)
        self.floor = reach - TIE
        self.limits = torch.stack([reach + slack, reach - slack]).float()
        self._mirrored = gallery is queries
        self._local = threading.local()
        self._query_classes = queries.classes.tolist()  # readable without waiting for a GPU
        self._gallery_classes = gallery.classes.tolist()

    def count(self) -> Tensor:
        """Return the counts, (n,) int64, from the whole matrix in tiles of ``side`` x ``side``."""
        ahead = torch.zeros_like(self.queries.classes)
        tiles = [
            (rows, cols)
            for rows in blocks(len(self.queries.fast), self.side)
            for cols in blocks(len(self.gallery.fast), self.side)
            if not self._mirrored or rows.start <= cols.start
        ]
        with _workers(ahead.device) as run:
            for counts in run(self._count_tile, tiles):
                for rows, count in counts:
                    ahead[rows] += count
        return ahead

    def count_listed(self, limit: int) -> Tensor:
        """Return the counts from FAISS's lists; those of ``limit`` and more are not exact."""
        ahead = torch.zeros_like(self.queries.classes)
        unsettled = torch.zeros_like(self.queries.classes, dtype=torch.bool)
        lists = faiss.search(self.queries.fast, self.gallery.fast, limit + 1 + _MARGIN)
        for rows, scores, ids in lists:
            other = self.gallery.classes[ids] != self.queries.classes[rows, None]
            high, low = self.limits[:, rows, None]
            sure = other & (scores >= high)
            ahead[rows] = sure.sum(1)
            if ids.shape[1] < len(self.gallery.fast):  # items that are not listed may be ahead
                unsettled[rows] = (scores[:, -1:] >= low).squeeze(1) & (ahead[rows] < limit)
            near = other & (scores >= low) & ~sure & ~unsettled[rows, None]
            row, place = near.nonzero(as_tuple=True)
            hit = self._is_ahead(rows.start + row, ids[row, place])
            ahead[rows] += torch.bincount(row[hit], minlength=len(near))
        left = unsettled.nonzero().flatten()
        if len(left):
            queries = Items(*(part[left] for part in self.queries))
            ahead[left] = _Retrieval(queries, self.gallery, self.best[left], self.side).count()
        return ahead

    @torch.no_grad()  # worker threads do not inherit the mode
    def _count_tile(self, tile: tuple[slice, slice]) -> list[tuple[slice, Tensor]]:
        """Return the counts of a tile's rows, and those of its mirror image in the matrix."""
        rows, cols = tile
        buffer = self._buffer()[:, : rows.stop - rows.start, : cols.stop - cols.start]
        torch.mm(self.queries.fast[rows], self.gallery.fast[cols].T, out=buffer[0])
        self._drop_class(buffer[0], rows, cols)
        counts = [(rows, self._tally(buffer, rows, cols))]
        if self._mirrored and rows != cols:
            counts.append((cols, self._tally(buffer.mT, cols, rows)))
        return counts

    def _buffer(self) -> Tensor:
        """Return this thread's buffer for a tile and two masks, the results of its comparisons.

        Allocating memory for each tile would cost more than the comparisons.
        """
        if not hasattr(self._local, "buffer"):
            height, width = (min(self.side, len(x.fast)) for x in (self.queries, self.gallery))
            self._local.buffer = self.queries.fast.new_empty(3, height, width)
        buffer: Tensor = self._local.buffer
        return buffer

    def _drop_class(self, cosine: Tensor, rows: slice, cols: slice) -> None:
        """Exclude pairs of the same class from a tile, including each query with itself."""
        mine, theirs = self._query_classes[rows], self._gallery_classes[cols]
        # Classes ascend on both sides, so the corners show that most tiles have no such pairs.
        if mine[0] <= theirs[-1] and theirs[0] <= mine[-1]:
            same = self.queries.classes[rows, None] == self.gallery.classes[cols]
            cosine.masked_fill_(same, -torch.inf)

    def _tally(self, buffer: Tensor, rows: slice, cols: slice) -> Tensor:
        """Return the counts of one tile, (rows,) int64.

        ``buffer`` (3, rows, cols) holds the cosines, and takes masks as float32, which a CPU sums
        several times faster than bool, and exactly.
        """
        cosine, masks = buffer[0], buffer[1:]
        torch.ge(cosine, self.limits[:, rows, None], out=masks)
        sure, maybe = masks.sum(2).long().unbind()
        near = (maybe > sure).nonzero().flatten()
        if len(near):
            above, upon = masks[:, near]
            sure[near] += self._settle(upon > above, rows.start + near, cols)
        return sure

    def _settle(self, near: Tensor, rows: Tensor, cols: slice) -> Tensor:
        """Return the number of pairs per row of the mask ``near`` that are ahead in float64."""
        if near.sum() * _DENSE > near.numel():
            cosine = self.queries.exact[rows] @ self.gallery.exact[cols].T
            return ((cosine >= self.floor[rows, None]) & near).sum(1)
        row, col = near.nonzero(as_tuple=True)
        hit = self._is_ahead(rows[row], cols.start + col)
        return torch.bincount(row[hit], minlength=len(near))

    def _is_ahead(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Return which of the pairs ``(rows[i], cols[i])`` are ahead in float64."""
        ahead = torch.empty_like(rows, dtype=torch.bool)
        for part in blocks(len(rows), self.side**2 // self.queries.exact.shape[1]):
            product = self.queries.exact[rows[part]] * self.gallery.exact[cols[part]]
            ahead[part] = product.sum(1) >= self.floor[rows[part]]
        return ahead


@contextlib.contextmanager
def _workers(device: torch.device) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a ``map`` that runs on all cores of a CPU, one call on each.

    If all cores shared each operation, they would wait for the slowest about ten times per tile,
    which takes longer than the work if the machine is also busy with other tasks.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, "recall", torch.set_num_threads, (1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)


def _check_backend(backend: str) -> None:
    if not isinstance(backend, str) or backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise UserError(
            f"unknown backend {shown(backend)}; there are {known}"
            f"{did_you_mean(backend, BACKENDS) if isinstance(backend, str) else ''}"
        )


def _check_options(backend: str, limit: int | None, block: int | None) -> None:
    _check_backend(backend)
    if limit is not None:
        _check_count("limit", limit)
    elif backend == "faiss":
        raise UserError("backend 'faiss' needs a limit: the largest rank that matters")
    if block is not None:
        _check_count("block", block)


def _check_ks(ks: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(ks, Iterable):
        raise UserError(f"ks must be positive integers, such as (1, 10, 100); got {shown(ks)}")
    checked = tuple(_check_count("each of ks", k) for k in ks)
    if not checked:
        raise UserError("ks is empty: give at least one K")
    return checked


def _check_count(name: str, value: Any) -> int:
    """Return a positive integer as an int; NumPy's are accepted, True and 1.0 are not."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 0 < number < NO_MATCH:
        raise UserError(f"{name} must be a positive integer below 2^31 - 1; got {shown(value)}")
    return number
