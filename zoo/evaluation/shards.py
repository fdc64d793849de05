"""The items of a measurement that one process has, and those of other processes as they pass by.

One process has all items. Of several, each has those of some classes, so that a query and its class
are in one place; the others are sent round in a ring, the items of one process at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.base import Space
from zoo.errors import UserError
from zoo.evaluation import spaces
from zoo.evaluation.items import Array, Items, arrange, blocks, by_class, check_items
from zoo.parallel.ranks import Ranks, talking

_PIECE = 1 << 13  # items of another process that are in memory at a time


class Passing(NamedTuple):
    """Items of another process, and the queries of this one that are compared with them here."""

    items: Items
    first: int  # position of the first among all items, in the order of :class:`Shards`
    rows: slice
    best: Tensor | None  # of the items as queries; None if they are only a gallery


class Shards:
    """The queries and the gallery that this process has.

    All queries are ordered by process, and then as they are in ``queries``.

    Args:
        embeddings: (n, d) the queries that this process was given.
        labels: (n,) their classes.
        gallery: (m, d) likewise of the gallery; None: each query retrieves from all other queries.
        gallery_labels: (m,) their classes.
        group: the processes; None: only this one.
        space: in which they are compared; None: by cosines.

    Raises:
        UserError: in all processes, if what one of them gave cannot be used.

    Attributes:
        queries: those of this process's classes.
        gallery: likewise; the same object as ``queries`` if these are the gallery and have the same
            vectors in it.
        mutual: whether the queries are the gallery.
        shapes: of this process's classes.
        largest: the largest number of gallery items of one process.
        alone: whether there is only this process.
        size: how many queries all processes have.
    """

    def __init__(
        self,
        embeddings: Array,
        labels: Array,
        gallery: Array | None = None,
        gallery_labels: Array | None = None,
        group: dist.ProcessGroup | None = None,
        space: Space | None = None,
    ) -> None:
        self._ranks = Ranks(group)
        given = self._ranks.together(
            lambda: _checked(embeddings, labels, gallery, gallery_labels), kinds_of
        )
        self.mutual = len(given) == 1
        if space is not None:
            given = _in_space(given, space, self._ranks)
        counts = [self._ranks.gather_counts(len(vectors)) for vectors, _ in given]
        of_all = [
            self._ranks.gather_labels(of, n) for (_, of), n in zip(given, counts, strict=True)
        ]
        *numbers, shapes = arrange(of_all[0], of_all[-1])
        classes = numbers[: len(of_all)]
        ends = _ends(classes[-1], self._ranks.size)
        self._sides = [
            _Side(vectors, of, torch.bucketize(of, ends, right=True), n, self._ranks)
            for (vectors, _), of, n in zip(given, classes, counts, strict=True)
        ]
        self.queries, self.gallery = self._sides[0].items, self._sides[-1].items
        if not self._ranks.alone:
            shapes = arrange(self.queries.classes, self.gallery.classes)[2]
        self.shapes = shapes
        self.largest = max(self._sides[-1].counts)
        self.alone, self.size = self._ranks.alone, sum(self._sides[0].counts)

    @property
    def symmetric(self) -> bool:
        """Whether the queries are the gallery, and two items are equally near from both sides."""
        return self.gallery is self.queries

    @property
    def first(self) -> int:
        """The position of the first query among all."""
        return self._sides[0].starts[self._ranks.rank]

    def others(self, best: Tensor | None = None) -> Iterator[Passing]:
        """Yield the gallery of each other process as it passes by, a piece at a time.

        With ``best``, a number for each query, the queries are the gallery, and their numbers pass
        by with them. Each pair of processes then meets once: one of them compares all of its
        queries with those of the other, or each compares half of them.
        """
        size, rank, counts = self._ranks.size, self._ranks.rank, self._sides[-1].counts
        for step in range(1, size // 2 + 1 if best is not None else size):
            to, owner = (rank - step) % size, (rank + step) % size
            rows = slice(0, len(self.queries.exact))
            theirs = slice(0, counts[owner])
            if best is not None and 2 * step == size:  # each has the items of the other
                rows = slice(0, rows.stop // 2) if rank < owner else rows
                theirs = slice(theirs.stop // 2 if rank > owner else 0, theirs.stop)
            for piece in blocks(max(counts), _PIECE):
                passing = self._piece(piece, to, owner, best)
                skipped = max(0, theirs.start - piece.start)
                if skipped < len(passing.items.exact):
                    items = Items(*(part[skipped:] for part in passing.items))
                    numbers = None if passing.best is None else passing.best[skipped:]
                    yield Passing(items, passing.first + skipped, rows, numbers)

    def _piece(self, piece: slice, to: int, owner: int, best: Tensor | None) -> Passing:
        """Send a piece of this process's gallery to one process, and return another's."""
        side = self._sides[-1]
        count = len(range(*piece.indices(side.counts[owner])))
        exact = self._exchange(side.items.exact[piece], to, owner, count)
        theirs = None if best is None else self._exchange(best[piece], to, owner, count)
        items = Items(exact, exact.float(), side.classes_of(owner)[piece])
        return Passing(items, side.starts[owner] + piece.start, piece, theirs)

    def sum(self, values: Tensor) -> Tensor:
        """Return the part for this process's queries of the sum of all processes' (N,) values."""
        self._ranks.sum([values])
        return torch.split(values, self._sides[0].counts)[self._ranks.rank]

    def as_given(self, values: Tensor) -> Tensor:
        """Return the values (N, ...) of all queries as they were given, process by process.

        ``values`` (n, ...) are those of this process's ``queries``.
        """
        side = self._sides[0]
        in_order = self._ranks.gather(values, side.counts)
        return torch.empty_like(in_order).index_copy_(0, side.order, in_order)

    def _exchange(self, mine: Tensor, to: int, owner: int, count: int) -> Tensor:
        """Send rows to one process; return the ``count`` rows that come from another."""
        theirs = mine.new_empty(count, *mine.shape[1:])
        both = ((dist.isend, mine.contiguous(), to), (dist.irecv, theirs, owner))
        operations = [
            dist.P2POp(how, tensor, self._ranks.peer(peer), self._ranks.group)
            for how, tensor, peer in both
            if tensor.numel()
        ]
        with talking():
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        return theirs


def kinds_of(sides: Sequence[tuple[Tensor, Tensor]]) -> str:
    """Return in words what queries, and a gallery, must have in common in all processes."""
    kinds = [
        f"{str(vectors.dtype).removeprefix('torch.')} of {vectors.shape[1]} dimensions"
        for vectors, _ in sides
    ]
    return " with a gallery of ".join(kinds)


def _checked(
    embeddings: Array, labels: Array, gallery: Array | None, gallery_labels: Array | None
) -> list[tuple[Tensor, Tensor]]:
    """Return the vectors and labels of the queries and, if there is one, of the gallery."""
    if (gallery is None) != (gallery_labels is None):
        raise UserError("gallery and gallery_labels go together: give both or neither")
    given = [check_items(embeddings, labels)]
    if gallery is not None and gallery_labels is not None:
        given.append(check_items(gallery, gallery_labels, "gallery", given[0][0]))
    return given


def _in_space(
    given: list[tuple[Tensor, Tensor]], space: Space, ranks: Ranks
) -> list[tuple[Tensor, Tensor]]:
    """Return the vectors by which queries and gallery are compared in a space, with the labels."""
    (queries, classes), (gallery, gallery_classes) = given[0], given[-1]
    queries, gallery = (space.points(vectors.double()) for vectors in (queries, gallery))
    of_queries, of_gallery = spaces.in_frame(
        queries, gallery, space, ranks.sum, lambda length: max(ranks.gather_lengths(length))
    )
    return [(of_queries, classes), (of_gallery, gallery_classes)]


class _Side:
    """The queries or the gallery: this process's items, and where all others are.

    Args:
        vectors: (n, d) that this process was given.
        classes: (N,) numbers of the classes of all processes' items.
        owner: (N,) the process that is to have each of them; it rises with the class.
        given: how many each process was given.
    """

    def __init__(
        self,
        vectors: Tensor,
        classes: Tensor,
        owner: Tensor,
        given: Sequence[int],
        ranks: Ranks,
    ) -> None:
        self.counts: list[int] = torch.bincount(owner, minlength=ranks.size).tolist()
        self.starts = [0, *accumulate(self.counts)][:-1]
        self._classes, self.order = classes.sort(stable=True)
        if not ranks.alone:
            vectors = _sent(vectors, torch.split(owner, list(given)), ranks)
        self.items = by_class(vectors, classes[owner == ranks.rank])[0]

    def classes_of(self, rank: int) -> Tensor:
        """Return the classes of the items of one process."""
        return torch.split(self._classes, self.counts)[rank]


def _sent(vectors: Tensor, owners: Sequence[Tensor], ranks: Ranks) -> Tensor:
    """Send each vector to its owner; return those for this process, in the order given."""
    rank, owner = ranks.rank, owners[ranks.rank]
    away = owner != rank
    leaving = torch.bincount(owner[away], minlength=len(owners)).tolist()
    coming = [0 if r == rank else int((of == rank).sum()) for r, of in enumerate(owners)]
    arrived = vectors.new_empty(sum(coming), vectors.shape[1])
    sent = vectors[away][owner[away].argsort(stable=True)]
    with talking():
        dist.all_to_all_single(arrived, sent, coming, leaving, ranks.group)
    before, after = torch.split(arrived, [sum(coming[:rank]), sum(coming[rank:])])
    return torch.cat([before, vectors[~away], after])


def _ends(classes: Tensor, size: int) -> Tensor:
    """Return the first class of each process but the first, so that their items are about equal."""
    in_order = classes.sort().values
    return in_order[[len(classes) * rank // size for rank in range(1, size)]]
