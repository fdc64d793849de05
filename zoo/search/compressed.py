"""Nearest neighbours among more vectors than memory holds: compressed, and in files.

Vectors are rotated (OPQ). Those that have the same nearest centre make a list (IVF), in which each
is a byte per four numbers: the nearest of 256 centres of these four (PQ). The lists are in a file
that is mapped into memory: the system reads what a search looks at, and drops it when it needs
room. So are the vectors themselves, in float16, by which the best candidates are compared.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.evaluation import faiss as evaluation_faiss
from zoo.search.neighbours import (
    AT_ONCE,
    MEASURED,
    SAMPLE,
    Found,
    Kind,
    Trial,
    in_blocks,
    in_order,
    probes,
    raised,
    unit,
    until_enough,
)

REFINE = 200
"""Candidates that are compared by their vectors, to find ten neighbours."""

PART_BYTES = 128 << 20
"""Of vectors, in float32, that are in memory at a time."""

ID_BYTES = 8
_READERS = 4  # threads that read lists ahead; to start FAISS's 32 for each query takes milliseconds


class Compressed:
    """An index whose lists and vectors are in files.

    Args:
        index: the trained index of FAISS, without vectors.
        sizes: (lists,) the length of each list.
        lists: the open file of the lists; it may be closed afterwards.
        vectors: (N, d) float16; None: candidates are compared by their codes alone.
        refine: how many candidates are compared by their vectors, to find ten neighbours.

    Raises:
        ValueError: the file is not of these sizes.
    """

    kind: Kind = "ivfpq"
    parameter = "nprobe"

    def __init__(
        self,
        index: Any,
        sizes: NDArray[np.int64],
        lists: BinaryIO,
        vectors: NDArray[np.float16] | None,
        refine: int,
    ) -> None:
        faiss = evaluation_faiss.module("a search")
        ivf = faiss.extract_index_ivf(index)
        ivf.replace_invlists(_mapped(faiss, ivf, sizes, lists), True)
        index.ntotal = ivf.ntotal = int(sizes.sum())
        self.count, self.size, self.value = int(index.ntotal), int(index.d), int(ivf.nprobe)
        self.refine, self._vectors = 0 if vectors is None else refine, vectors
        self._index, self._lists = index, int(ivf.nlist)

    @classmethod
    def read(
        cls, file: BinaryIO, lists: BinaryIO, vectors: NDArray[np.float16] | None, refine: int
    ) -> Compressed:
        """Return the index that :func:`write` wrote; raise a ValueError if it is not one."""
        faiss = evaluation_faiss.module("a search")
        try:
            index = faiss.read_index(faiss.PyCallbackIOReader(file.read, AT_ONCE))
            sizes = np.load(file, allow_pickle=False)
            if not isinstance(index, faiss.IndexPreTransform):
                raise TypeError(type(index).__name__)
            return cls(index, sizes, lists, vectors, refine)
        except (RuntimeError, TypeError, AttributeError, MemoryError, EOFError) as error:
            raise ValueError(" ".join(str(error).split())[-200:]) from error

    def search(self, queries: NDArray[np.float32], k: int) -> Found:
        """Return the ``k`` nearest that are found of each query (n, d), nearest first."""
        k = min(k, self.count)
        factor = max(1.0, k / (MEASURED + 1))  # nprobe was tuned for ten neighbours
        length = min(self.count, max(k, round(self.refine * factor)))
        search = partial(self._search, k=k, length=length, effort=round(self.value * factor))
        return in_blocks(search, queries, k, 8 * length * self.size)

    def tune(self, vectors: NDArray[np.float16]) -> list[Trial]:
        """Raise nprobe until the recall is reached or rises no more; return the values tried.

        Some of the vectors (N, d), which are those that were added, serve as queries; exact search
        reads all of them once.
        """
        own = np.linspace(0, self.count - 1, min(SAMPLE, self.count)).astype(np.int64)
        queries = unit(vectors[own])
        k = min(MEASURED + 1, self.count)

        def search(value: int) -> Found:
            self.value = value
            positions = self.search(queries, k).positions
            return in_order(queries, positions, vectors[positions.clip(min=0)])

        least = _last_of_nearest(queries, vectors, k) - 2 * (self.size + 8) * 2**-24
        return raised(probes(self._lists), search, own, least, may_stall=True)

    def _search(self, queries: NDArray[np.float32], k: int, length: int, effort: int) -> Found:
        scores, positions = until_enough(
            self._search_faiss, queries, length, k, effort, self._lists
        )
        if positions.max(initial=-1) >= self.count or positions.min(initial=0) < -1:
            raise UserError("the lists of the index are damaged; build it again with zoo index")
        if self.refine and self._vectors is not None:
            found = in_order(queries, positions, self._vectors[positions.clip(min=0)])
        else:
            cosines = scores.astype(np.float64).clip(-1, 1)
            found = Found(np.where(positions < 0, -np.inf, cosines), positions)
        return Found(found.cosines[:, :k], found.positions[:, :k])

    def _search_faiss(
        self, queries: NDArray[np.float32], k: int, effort: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        faiss = evaluation_faiss.module("a search")
        lists = faiss.SearchParametersIVF(nprobe=min(effort, self._lists))
        parameters = faiss.SearchParametersPreTransform(index_params=lists)
        # After an import of faiss.contrib.torch_utils, as in PML, `search` takes no params.
        search = getattr(self._index, "search_numpy", self._index.search)
        scores, positions = search(queries, k, params=parameters)
        return scores, positions


def check_system(faiss: Any) -> None:
    """Raise a UserError where FAISS cannot map lists into memory."""
    if sys.platform == "win32" or not hasattr(faiss, "OnDiskInvertedLists"):
        raise UserError("kind ivfpq: FAISS keeps no lists in files on this system; use ivf")


def row_bytes(index: Any) -> int:
    """Return how many bytes of the lists a vector takes: its code and its position."""
    faiss = evaluation_faiss.module("an index")
    return int(faiss.extract_index_ivf(index).code_size) + ID_BYTES


def parts_of(vectors: NDArray[Any]) -> list[slice]:
    """Return the parts of vectors (N, d) that are in memory at a time."""
    step = max(1, PART_BYTES // (4 * vectors.shape[1]))
    return [slice(i, min(i + step, len(vectors))) for i in range(0, len(vectors), step)]


def _mapped(faiss: Any, ivf: Any, sizes: NDArray[np.int64], file: BinaryIO) -> Any:
    """Return the lists in a file; FAISS takes their places from their sizes."""
    check_system(faiss)
    size = os.fstat(file.fileno()).st_size
    if sizes.shape != (ivf.nlist,) or sizes.dtype != np.int64 or (sizes < 0).any():
        raise ValueError("it has other lists than its centres")
    if size != int(sizes.sum()) * (ivf.code_size + ID_BYTES):
        raise ValueError("its lists are not of the size that it says")
    # By its number, since FAISS cannot open every path that Python can.
    lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, f"/dev/fd/{file.fileno()}")
    lists.read_only, lists.totsize = True, size
    lists.prefetch_nthread = _READERS
    unsigned = sizes.astype(np.uint64)  # must live until it was read
    lists.set_all_lists_sizes(faiss.swig_ptr(unsigned))
    lists.do_mmap()
    lists.this.disown()  # the index frees it
    return lists


def _last_of_nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float16], k: int
) -> NDArray[np.float32]:
    """Return the cosine of the k-th nearest of each query, by comparing it with every vector."""
    faiss = evaluation_faiss.module("an index")
    best = np.empty((len(queries), 0), np.float32)
    for part in parts_of(vectors):
        some = unit(vectors[part])
        scores, _ = faiss.knn(queries, some, min(k, len(some)), metric=faiss.METRIC_INNER_PRODUCT)
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :k]
    return best[:, -1]
