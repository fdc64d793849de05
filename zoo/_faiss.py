"""The one place that calls FAISS: a flat inner-product search, given out block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UserError

_BLOCK_BYTES = (
    64 << 20
)  # of scores and ids; large enough for FAISS's own blocking to be at its best
_GPU_MAX_K = 2048  # the longest list that FAISS selects on a GPU


def search(queries: Tensor, gallery: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield ``(rows, scores, ids)`` of the ``k`` largest inner products, in descending order.

    ``queries`` (n, d) and ``gallery`` (m, d) are float32; ``scores`` and ``ids`` are (rows, k') on
    the device of ``queries``, where k' is less than k if the gallery or FAISS has no more. FAISS
    works on a GPU if the queries are there and it was built for that, else on the CPU.

    Raises:
        UserError: FAISS is not installed.
    """
    index, longest = _index(gallery)
    k = min(k, len(gallery), longest)
    step = max(1, _BLOCK_BYTES // (12 * k))
    for start in range(0, len(queries), step):
        rows = slice(start, min(start + step, len(queries)))
        found = index.search(queries[rows].cpu().numpy(), k)
        scores, ids = (torch.from_numpy(part).to(queries.device) for part in found)
        yield rows, scores, ids


def _index(gallery: Tensor) -> tuple[Any, int]:
    """Return the filled index and the longest list it can give."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "backend 'faiss' needs FAISS, which is not installed: "
            "pip install 'metric-zoo[faiss-cpu]' (or 'metric-zoo[faiss-gpu]')"
        ) from error
    index: Any = faiss.IndexFlatIP(gallery.shape[1])
    longest = len(gallery)
    if gallery.is_cuda and hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        index = faiss.index_cpu_to_gpus_list(index, gpus=[gallery.get_device()])
        longest = _GPU_MAX_K
    index.add(gallery.cpu().numpy())
    return index, longest
