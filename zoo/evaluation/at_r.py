"""Average precision and precision at R of each query, for MAP@R and R-precision."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.errors import UserError
from zoo.evaluation.items import TIE, Array, Items, arrange, blocks, by_class, check_items
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
) -> AtR:
    """Return the scores of the R nearest items of each query, given as (n, d) with labels (n,).

    They are computed in float64, on the device of ``embeddings``, ``block`` queries at a time.
    Items are retrieved from the gallery, (m, d) with labels (m,), or else from the other queries.

    Raises:
        UserError: shapes or types do not match, or an embedding is NaN or infinite.
    """
    vectors, classes = check_items(embeddings, labels)
    others, other_classes = vectors, classes
    if (gallery is None) != (gallery_labels is None):
        raise UserError("gallery and gallery_labels go together: give both or neither")
    if gallery is not None and gallery_labels is not None:
        others, other_classes = check_items(gallery, gallery_labels, "gallery", vectors)
    with full_float32(vectors.device):  # no autocast
        classes, other_classes, shapes = arrange(classes, other_classes)
        queries, order = by_class(vectors, classes)
        found_in = queries if gallery is None else by_class(others, other_classes)[0]
        step = block or _CELLS[vectors.device.type] // len(found_in.exact)
        scores = queries.exact.new_zeros(2, len(queries.exact))
        row = col = 0
        for shape in shapes:
            rows, cols = shape.classes * shape.queries, shape.classes * shape.gallery
            if shape.gallery > (gallery is None):
                for part in blocks(rows, step):
                    place = torch.arange(part.start, part.stop, device=vectors.device)
                    first = col + place // shape.queries * shape.gallery
                    scores[:, row + place] = _at_r(
                        queries, found_in, row + place, first, shape.gallery
                    )
            row, col = row + rows, col + cols
    found = torch.empty_like(scores)
    found[:, order] = scores
    return AtR(*found.cpu())


def _at_r(queries: Items, gallery: Items, rows: Tensor, first: Tensor, size: int) -> Tensor:
    """Return average precision and precision at R of the queries in ``rows``, (2, rows).

    The class of each begins in the gallery at its ``first``, and has ``size`` items there.
    """
    cosine = queries.exact[rows] @ gallery.exact.T
    own = first[:, None] + torch.arange(size, device=rows.device)
    right = cosine.gather(1, own)
    r = size
    if gallery is queries:
        right.masked_fill_(own == rows[:, None], -torch.inf)
        r -= 1
    right = right.sort(dim=1, descending=True).values[:, :r]  # the query itself comes last
    cosine.scatter_(1, own, -torch.inf)
    wrong = cosine.topk(min(r, cosine.shape[1] - size), dim=1).values
    # Items of other classes that are as near as the i-th right one, or nearer, rank before it.
    before = torch.searchsorted(-wrong, TIE - right, right=True)
    number = torch.arange(1, r + 1, device=rows.device, dtype=cosine.dtype)
    place = number + before
    counts = place <= r
    return torch.stack([(number / place * counts).sum(1), counts.sum(1)]) / r
