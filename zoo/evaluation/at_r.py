"""Average precision and precision at R of each query, for MAP@R and R-precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.base import Space
from zoo.evaluation.items import TIE, Array, Items, Shape, blocks
from zoo.evaluation.shards import Shards
from zoo.support.precision import full_float32

_CELLS = {"cpu": 2**22, "cuda": 2**26}  # cosines in memory at a time, 8 bytes each


class AtR(NamedTuple):
    """Scores of the R nearest items of each query, where R is the number of others in its class.

    They are (queries,) float64 on the CPU, in the order given; 0 if a class has no other item.
    """

    average_precision: Tensor
    precision: Tensor


@torch.no_grad()
def at_r(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    block: int | None = None,
    group: dist.ProcessGroup | None = None,
    space: Space | None = None,
) -> AtR:
    """Return the scores of the R nearest items of each query, given as (n, d) with labels (n,).

    They are computed in float64, on the device of ``embeddings``, ``block`` queries at a time.
    Items are retrieved from the gallery, (m, d) with labels (m,), or else from the other queries.
    With a group of processes, each gives its part, and gets the scores of all queries. In a space,
    its distance takes the place of the cosine.

    Raises:
        UserError: shapes or types do not match, or an embedding is NaN or infinite.
    """
    shards = Shards(embeddings, labels, gallery, gallery_labels, group, space)
    device = shards.queries.exact.device
    with full_float32(device):  # no autocast
        parts: Iterable[_Part] = _parts(
            shards, block or _CELLS[device.type] // max(1, shards.largest)
        )
        if not shards.alone:
            parts = list(parts)
            for passing in shards.others():
                for part in parts:
                    part.look_at(passing.items)
        scores = shards.queries.exact.new_zeros(len(shards.queries.exact), 2)
        for part in parts:
            scores[part.rows] = part.scores()
    return AtR(*shards.as_given(scores).T.contiguous().cpu())


def _parts(shards: Shards, step: int) -> Iterator[_Part]:
    """Yield the queries of this process, ``step`` of one shape of class at a time."""
    row = col = 0
    for shape in shards.shapes:
        rows, cols = shape.classes * shape.queries, shape.classes * shape.gallery
        if shape.gallery > shards.mutual:
            for part in blocks(rows, step):
                yield _Part(shards, slice(row + part.start, row + part.stop), row, col, shape)
        row, col = row + rows, col + cols


class _Part:
    """Queries whose classes have one shape: the cosines of their right items and best wrong ones.

    Args:
        shards: the items.
        rows: the queries.
        row: the first query whose class has this shape.
        col: the first item of the gallery whose class has this shape.
        shape: of their classes.
    """

    def __init__(self, shards: Shards, rows: slice, row: int, col: int, shape: Shape) -> None:
        self.rows, self.exact = rows, shards.queries.exact[rows]
        cosine = self.exact @ shards.gallery.exact.T
        place = torch.arange(rows.start, rows.stop, device=cosine.device)
        first = col + (place - row) // shape.queries * shape.gallery
        own = first[:, None] + torch.arange(shape.gallery, device=cosine.device)
        right = cosine.gather(1, own)
        self.r = shape.gallery - shards.mutual
        if shards.mutual:
            right.masked_fill_(own == place[:, None], -torch.inf)
        # The query itself comes last.
        self.right = right.sort(dim=1, descending=True).values[:, : self.r]
        cosine.scatter_(1, own, -torch.inf)
        self.wrong = self._best(cosine, cosine.shape[1] - shape.gallery)

    def look_at(self, gallery: Items) -> None:
        """Keep the best wrong items so far, where all items of a gallery are of other classes."""
        cosine = torch.cat([self.wrong, self.exact @ gallery.exact.T], 1)
        self.wrong = self._best(cosine, cosine.shape[1])

    def scores(self) -> Tensor:
        """Return average precision and precision at R of the queries, (rows, 2)."""
        # Items of other classes that are as near as the i-th right one, or nearer, rank before it.
        before = torch.searchsorted(-self.wrong, TIE - self.right, right=True)
        number = torch.arange(1, self.r + 1, device=before.device, dtype=self.right.dtype)
        place = number + before
        counts = place <= self.r
        return torch.stack([(number / place * counts).sum(1), counts.sum(1)], 1) / self.r

    def _best(self, cosine: Tensor, of: int) -> Tensor:
        return cosine.topk(min(self.r, of), dim=1).values
