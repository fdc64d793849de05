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
import torch.distributed as dist
from torch import Tensor

from zoo.base import Space
from zoo.errors import UserError, did_you_mean
from zoo.evaluation import faiss
from zoo.evaluation.items import (
    TIE,
    TILE_SIDE,
    Array,
    Items,
    blocks,
)
from zoo.evaluation.shards import Shards
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
    group: dist.ProcessGroup | None = None,
    space: Space | None = None,
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
        group=group,
        space=space,
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
    group: dist.ProcessGroup | None = None,
    space: Space | None = None,
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
        group: the processes of ``torch.distributed`` that share the work: each calls this with its
            own part of the queries and of the gallery, and gets the ranks of all queries, process
            by process. The ranks are those that one process would find.
        space: of ``zoo.build("spaces", ...)``, whose distance takes the place of the cosine.

    Raises:
        UserError: shapes, types or options do not match, or an embedding is NaN or infinite.
    """
    _check_options(backend, limit, block, group)
    shards = Shards(embeddings, labels, gallery, gallery_labels, group, space)
    device = shards.queries.exact.device
    side = block or TILE_SIDE[device.type]
    with full_float32(device):
        best = _best_match(shards, side)
        queries = _Ranked(shards.queries, best)
        if limit is None or backend == "torch":
            ahead = _count(shards, queries, side)
        else:
            ahead = _Retrieval(queries, _Ranked(shards.gallery), side).count_listed(limit)
    found = 1 + (ahead if limit is None else ahead.clamp(max=limit))
    found.masked_fill_(best == -torch.inf, NO_MATCH)
    return shards.as_given(found).int().cpu()


def _best_match(shards: Shards, side: int) -> Tensor:
    """Return the largest cosine of each query within its class, (n,) float64, or -inf.

    Classes of one shape are one batched product, split into parts of at most ``side``^2 cosines.
    """
    queries, gallery = shards.queries, shards.gallery
    best = queries.exact.new_full((len(queries.exact),), -torch.inf)
    row = col = 0
    for shape in shards.shapes:
        rows, cols = shape.classes * shape.queries, shape.classes * shape.gallery
        if rows and cols:
            mine = queries.exact[row : row + rows].view(shape.classes, shape.queries, -1)
            theirs = gallery.exact[col : col + cols].view(shape.classes, shape.gallery, -1)
            into = best[row : row + rows].view(shape.classes, shape.queries)
            for part in blocks(shape.classes, side**2 // (shape.queries * shape.gallery)):
                for slab in blocks(shape.queries, side**2 // shape.gallery):
                    cosine = mine[part, slab] @ theirs[part].mT
                    if shards.mutual:  # by index: equal items other than the query count
                        cosine.diagonal(slab.start, 1, 2).fill_(-torch.inf)
                    into[part, slab] = cosine.amax(2)
        row, col = row + rows, col + cols
    return best


class _Ranked:
    """Items, and where they are queries, how many items of other classes are ahead of their best.

    The error of a cosine in float32 is below ``slack``: above the first of two ``limits`` an item
    is certainly ahead, below the second it is not. Those between are compared with ``floor`` in
    float64.
    """

    def __init__(self, items: Items, best: Tensor | None = None) -> None:
        self.exact, self.fast, self.classes = items
        self.class_list = items.classes.tolist()  # readable without waiting for a GPU
        self.ahead = torch.zeros_like(items.classes)
        if best is not None:
            # |fl(x.y) - x.y| <= d u |x||y| for any order of summation, u = 2^-24 (Jeannerod and
            # Rump, 2013); the rest covers the rounding of both vectors and of the two limits.
            slack = (items.exact.shape[1] + 8) * 2**-24
            reach = best.masked_fill(best == -torch.inf, torch.inf)
            self.best, self.floor = best, reach - TIE
            self.limits = torch.stack([reach + slack, reach - slack]).float()


def _count(shards: Shards, queries: _Ranked, side: int) -> Tensor:
    """Return how many items are ahead of each query of this process, (n,) int64."""
    mutual = shards.symmetric
    own = queries if mutual else _Ranked(shards.gallery)
    _Retrieval(queries, own, side).count()
    if shards.alone:
        return queries.ahead
    ahead = queries.ahead.new_zeros(shards.size)
    for passing in shards.others(queries.best if mutual else None):
        theirs = _Ranked(passing.items, passing.best)
        _Retrieval(queries, theirs, side, both=mutual).count(passing.rows)
        if mutual:
            ahead[passing.first : passing.first + len(theirs.ahead)] += theirs.ahead
    ahead[shards.first : shards.first + len(queries.ahead)] += queries.ahead
    return shards.sum(ahead)


class _Retrieval:
    """Counts, for each query, the items of other classes in a gallery that are ahead.

    Args:
        queries: to count for.
        gallery: to count in.
        side: of a tile.
        both: the items of the gallery are queries, too, and the other items are their gallery.
    """

    def __init__(self, queries: _Ranked, gallery: _Ranked, side: int, both: bool = False) -> None:
        self.queries, self.gallery, self.side = queries, gallery, side
        self._mirrored = both or gallery is queries
        self._local = threading.local()

    def count(self, of: slice | None = None) -> None:
        """Add the counts of some queries, from the matrix in tiles of ``side`` x ``side``."""
        tiles = [
            (rows, cols)
            for rows in blocks(len(self.queries.fast), self.side, of)
            for cols in blocks(len(self.gallery.fast), self.side)
            if self.gallery is not self.queries or rows.start <= cols.start
        ]
        with _workers(self.queries.ahead.device) as run:
            for counts in run(self._count_tile, tiles):
                for side, part, count in counts:
                    side.ahead[part] += count

    def count_listed(self, limit: int) -> Tensor:
        """Return the counts from FAISS's lists; those of ``limit`` and more are not exact."""
        queries, ahead = self.queries, self.queries.ahead
        unsettled = torch.zeros_like(queries.classes, dtype=torch.bool)
        lists = faiss.search(queries.fast, self.gallery.fast, limit + 1 + _MARGIN)
        for rows, scores, ids in lists:
            other = self.gallery.classes[ids] != queries.classes[rows, None]
            high, low = queries.limits[:, rows, None]
            sure = other & (scores >= high)
            ahead[rows] = sure.sum(1)
            if ids.shape[1] < len(self.gallery.fast):  # items that are not listed may be ahead
                unsettled[rows] = (scores[:, -1:] >= low).squeeze(1) & (ahead[rows] < limit)
            near = other & (scores >= low) & ~sure & ~unsettled[rows, None]
            row, place = near.nonzero(as_tuple=True)
            hit = self._is_ahead(queries, rows.start + row, self.gallery, ids[row, place])
            ahead[rows] += torch.bincount(row[hit], minlength=len(near))
        left = unsettled.nonzero().flatten()
        if len(left):
            items = Items(queries.exact[left], queries.fast[left], queries.classes[left])
            again = _Ranked(items, queries.best[left])
            _Retrieval(again, self.gallery, self.side).count()
            ahead[left] = again.ahead
        return ahead

    @torch.no_grad()  # worker threads do not inherit the mode
    def _count_tile(self, tile: tuple[slice, slice]) -> list[tuple[_Ranked, slice, Tensor]]:
        """Return the counts of a tile's rows, and those of its mirror image in the matrix."""
        (queries, gallery), (rows, cols) = (self.queries, self.gallery), tile
        buffer = self._buffer()[:, : rows.stop - rows.start, : cols.stop - cols.start]
        torch.mm(queries.fast[rows], gallery.fast[cols].T, out=buffer[0])
        self._drop_class(buffer[0], rows, cols)
        counts = [(queries, rows, self._tally(buffer, queries, rows, gallery, cols))]
        if self._mirrored and not (gallery is queries and rows == cols):
            counts.append((gallery, cols, self._tally(buffer.mT, gallery, cols, queries, rows)))
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
        mine, theirs = self.queries.class_list[rows], self.gallery.class_list[cols]
        # Classes ascend on both sides, so the corners show that most tiles have no such pairs.
        if mine[0] <= theirs[-1] and theirs[0] <= mine[-1]:
            same = self.queries.classes[rows, None] == self.gallery.classes[cols]
            cosine.masked_fill_(same, -torch.inf)

    def _tally(
        self, buffer: Tensor, queries: _Ranked, rows: slice, gallery: _Ranked, cols: slice
    ) -> Tensor:
        """Return the counts of one tile, (rows,) int64.

        ``buffer`` (3, rows, cols) holds the cosines, and takes masks as float32, which a CPU sums
        several times faster than bool, and exactly.
        """
        cosine, masks = buffer[0], buffer[1:]
        torch.ge(cosine, queries.limits[:, rows, None], out=masks)
        sure, maybe = masks.sum(2).long().unbind()
        near = (maybe > sure).nonzero().flatten()
        if len(near):
            above, upon = masks[:, near]
            sure[near] += self._settle(upon > above, queries, rows.start + near, gallery, cols)
        return sure

    def _settle(
        self, near: Tensor, queries: _Ranked, rows: Tensor, gallery: _Ranked, cols: slice
    ) -> Tensor:
        """Return the number of pairs per row of the mask ``near`` that are ahead in float64."""
        if near.sum() * _DENSE > near.numel():
            cosine = queries.exact[rows] @ gallery.exact[cols].T
            return ((cosine >= queries.floor[rows, None]) & near).sum(1)
        row, col = near.nonzero(as_tuple=True)
        hit = self._is_ahead(queries, rows[row], gallery, cols.start + col)
        return torch.bincount(row[hit], minlength=len(near))

    def _is_ahead(self, queries: _Ranked, rows: Tensor, gallery: _Ranked, cols: Tensor) -> Tensor:
        """Return which of the pairs ``(rows[i], cols[i])`` are ahead in float64."""
        ahead = torch.empty_like(rows, dtype=torch.bool)
        for part in blocks(len(rows), self.side**2 // queries.exact.shape[1]):
            product = queries.exact[rows[part]] * gallery.exact[cols[part]]
            ahead[part] = product.sum(1) >= queries.floor[rows[part]]
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


def _check_options(
    backend: str, limit: int | None, block: int | None, group: dist.ProcessGroup | None
) -> None:
    _check_backend(backend)
    if group is not None and backend != "torch":
        raise UserError(f"backend {backend!r} is for one process; with a group, use 'torch'")
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
