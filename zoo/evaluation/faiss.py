"""FAISS: its import, and a flat inner-product search that yields results block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UserError

_BLOCK_BYTES = 64 << 20  # of scores and ids; large enough for FAISS's own blocking to be efficient
GPU_MAX_K = 2048  # the longest list that FAISS selects on a GPU


def search(queries: Tensor, gallery: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield ``(rows, scores, ids)`` of the ``k`` largest inner products, in descending order.

    ``queries`` (n, d) and ``gallery`` (m, d) are float32; ``scores`` and ``ids`` are (rows, k') on
    the device of ``queries``, where k' is less than k if the gallery or FAISS has no more. FAISS
    runs on a GPU if the queries are there and its build supports it, else on the CPU. Raises a
    UserError if it is not installed.
    """
    index, longest = _index(gallery)
    k = min(k, len(gallery), longest)
    step = max(1, _BLOCK_BYTES // (12 * k))
    for start in range(0, len(queries), step):
        rows = slice(start, min(start + step, len(queries)))
        found = index.search(queries[rows].cpu().numpy(), k)
        scores, ids = (torch.from_numpy(part).to(queries.device) for part in found)
        yield rows, scores, ids


def module(wanted_by: str) -> Any:
    """Return FAISS, or raise a UserError that says what needs it."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"{wanted_by} needs FAISS, which is not installed: "
            "pip install 'metric-zoo[faiss-cpu]' (or 'metric-zoo[faiss-gpu]')"
        ) from error
    return faiss


def on_gpu(index: Any, device: torch.device) -> Any | None:
    """Return a copy of an index on a GPU; None if FAISS was built without GPUs or it is a CPU."""
    faiss = module("a search")
    if device.type != "cuda" or not hasattr(faiss, "StandardGpuResources"):
        return None
    if not faiss.get_num_gpus():
        return None
    return faiss.index_cpu_to_gpus_list(index, gpus=[device.index or 0])


def _index(gallery: Tensor) -> tuple[Any, int]:
    """Return the filled index and the longest list that it can return."""
    index: Any = module("backend 'faiss'").IndexFlatIP(gallery.shape[1])
    longest = len(gallery)
    copy = on_gpu(index, gallery.device)
    if copy is not None:
        index, longest = copy, GPU_MAX_K
    index.add(gallery.cpu().numpy())
    return index, longest
