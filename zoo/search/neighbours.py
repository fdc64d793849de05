"""Nearest neighbours by cosine: a FAISS index, whose results are sorted in float64.

FAISS computes in float32, where rounding may swap neighbours. So more candidates than needed are
taken from a flat index, with a proven bound on those it left out, and sorted as in
:mod:`zoo.evaluate`: by cosine in float64, ties by position. The approximate kinds cannot promise
which neighbours they find, so their recall is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.evaluation import faiss as evaluation_faiss
from zoo.progress import Reporter
from zoo.support import environment
from zoo.support.files import open_regular

Kind = Literal["flat", "hnsw", "ivf", "ivfpq"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MOST_FLAT = 100_000
"""Vectors up to which the query is compared with every one: milliseconds per query."""

MOST_HNSW = 1_000_000
"""Vectors up to which a graph is built; for more, that takes hours, and clusters take less."""

_MOST_IN_MEMORY = 0.75
"""Share of the memory that a build may fill: the embeddings, and their copy in FAISS."""

TARGET_RECALL = 0.95
"""The search parameter of an approximate index is raised until it has this Recall@10."""

_DECIMALS = 12  # of cosines that are compared; zoo.evaluate.TIE
SAMPLE = 500  # queries that the recall is measured with
MEASURED = 10  # neighbours per query
_STALLED = 0.005  # of recall
_LINKS = 32  # per item in the HNSW graph
_CANDIDATES = 100  # compared when an item is added to the graph
PER_LIST = 39  # vectors per list of IVF that FAISS requires to train its centre
SEEN_PER_LIST = 64  # vectors per list that it uses at most
_AT_A_TIME = 10_000  # vectors added between two reports of progress
_BLOCK_BYTES = 64 << 20  # of candidates in float64
AT_ONCE = 1 << 20  # bytes per read or write


class Trial(NamedTuple):
    """The recall at one value of the search parameter."""

    value: int  # of ``nprobe`` (lists that are searched) or ``efSearch`` (items that are compared)
    recall: float  # share of the ten nearest that are found


class Found(NamedTuple):
    """Neighbours, nearest first; -infinity and -1 where an approximate index found too few."""

    cosines: NDArray[np.float64]  # (queries, k)
    positions: NDArray[np.int64]  # (queries, k), in the order in which vectors were added


class Neighbours:
    """The vectors of a FAISS index, searched on a GPU if FAISS and the kind support it."""

    def __init__(self, index: Any, kind: Kind, device: torch.device) -> None:
        self.kind: Kind = kind
        self.count, self.size = int(index.ntotal), int(index.d)
        self._index = index
        self._gpu = None if kind == "hnsw" else evaluation_faiss.on_gpu(index, device)
        # |fl(x.y) - x.y| <= d u |x||y|, u = 2^-24, and the vectors are rounded; see zoo.evaluate.
        self._slack = (self.size + 8) * 2**-24
        if kind == "ivf":
            index.make_direct_map()

    @classmethod
    def of(
        cls,
        vectors: NDArray[np.float32],
        kind: Kind,
        device: torch.device,
        reporter: Reporter | None = None,
    ) -> Neighbours:
        """Return an index of vectors (N, d) of length 1 or 0; building a graph is slow."""
        faiss = evaluation_faiss.module("an index")
        index = _empty(faiss, len(vectors), vectors.shape[1], kind)
        if kind == "ivf":
            index = _trained(index, vectors, device)
        parts = [vectors[i : i + _AT_A_TIME] for i in range(0, len(vectors), _AT_A_TIME)]
        for part in (reporter or Reporter(quiet=True)).track(parts, len(parts), "indexing"):
            index.add(part)
        return cls(index, kind, device)

    @classmethod
    def read(cls, path: Path, kind: Kind, device: torch.device) -> Neighbours:
        """Return the index in a file; raise a UserError if there is none that can be read."""
        faiss = evaluation_faiss.module("a search")
        try:
            # FAISS cannot open non-ASCII paths on Windows, or paths that are not text anywhere.
            with open_regular(path) as file:
                index = faiss.read_index(faiss.PyCallbackIOReader(file.read, AT_ONCE))
            if not isinstance(index, getattr(faiss, _CLASSES[kind])):
                raise TypeError(type(index).__name__)
            return cls(index, kind, device)
        except (OSError, RuntimeError, TypeError, AttributeError, MemoryError) as error:
            raise UserError(
                f"{path}: not a readable index of kind {kind}; build it again with zoo index"
            ) from error

    def write(self, file: BinaryIO) -> None:
        """Write the index to an open file, for :meth:`read`; raise an OSError if that fails."""
        faiss = evaluation_faiss.module("an index")
        try:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write, AT_ONCE))
        except RuntimeError as error:
            raise OSError(0, " ".join(str(error).split())[-200:]) from error

    @property
    def parameter(self) -> str:
        """The parameter that trades time for recall; "" for a flat index."""
        return {"flat": "", "hnsw": "efSearch", "ivf": "nprobe"}[self.kind]

    @property
    def value(self) -> int:
        """The value of :attr:`parameter`; 0 for a flat index."""
        if self.kind == "flat":
            return 0
        return int(self._index.nprobe if self.kind == "ivf" else self._index.hnsw.efSearch)

    @value.setter
    def value(self, value: int) -> None:
        if self.kind == "hnsw":
            self._index.hnsw.efSearch = value
        elif self.kind == "ivf":
            for index in (self._index, self._gpu):
                if index is not None:
                    index.nprobe = value

    def search(self, queries: NDArray[np.float32], k: int) -> Found:
        """Return the ``k`` nearest of each query (n, d), or all if there are fewer."""
        k = min(k, self.count)
        length = min(self.count, 2 * k + 32) if self.kind == "flat" else k
        search = partial(self._search, k=k, length=length)
        return in_blocks(search, queries, k, 8 * length * self.size)

    def tune(self, vectors: NDArray[np.float32]) -> list[Trial]:
        """Raise the search parameter until the recall is reached; return the values tried.

        Some of the vectors, which are those that were added, serve as queries for the others.
        """
        if self.kind == "flat":
            return []
        faiss = evaluation_faiss.module("an index")
        count = min(SAMPLE, self.count)
        own = np.linspace(0, self.count - 1, count).astype(np.int64)
        k = min(MEASURED + 1, self.count)
        truth, _ = faiss.knn(vectors[own], vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        least = truth[:, -1] - 2 * self._slack

        def search(value: int) -> Found:
            self.value = value
            return self.search(vectors[own], k)

        return raised(self._values(), search, own, least)

    def _values(self) -> list[int]:
        return [2**i for i in range(4, 11)] if self.kind == "hnsw" else probes(self._index.nlist)

    def _search(self, queries: NDArray[np.float32], k: int, length: int) -> Found:
        scores, positions = self._candidates(queries, length)
        found = self._in_order(queries, positions)
        if self.kind == "flat" and scores.shape[1] < self.count:
            # No vector outside the candidates is nearer than this.
            beyond = scores[:, -1] + self._slack
            for row in np.flatnonzero(found.cosines[:, k - 1] <= beyond + 10.0**-_DECIMALS):
                near = self._all_near(queries[row : row + 1], float(scores[row, k - 1]))
                again = self._in_order(queries[row : row + 1], near)
                for all_, one in zip(found, again, strict=True):
                    all_[row, :k] = one[0, :k]
        return Found(found.cosines[:, :k], found.positions[:, :k])

    def _candidates(
        self, queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and positions of the ``k`` nearest by FAISS, -1 where it found too few."""
        if self.kind == "flat":
            return self._search_faiss(queries, k, 0)
        # The parameter was tuned for ten neighbours; to find more, it is raised in proportion.
        effort = round(self.value * max(1.0, k / (MEASURED + 1)))
        return until_enough(self._search_faiss, queries, k, k, effort, self._all)

    @property
    def _all(self) -> int:
        """The value of :attr:`parameter` with which every vector is compared."""
        return int(self._index.nlist) if self.kind == "ivf" else self.count

    def _search_faiss(
        self, queries: NDArray[np.float32], k: int, effort: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        fits = max(k, effort) <= evaluation_faiss.GPU_MAX_K
        index: Any = self._gpu if self._gpu is not None and fits else self._index
        options = {} if self.kind == "flat" else {"params": self._parameters(effort)}
        # After an import of faiss.contrib.torch_utils, as in PML, `search` takes no params.
        search = getattr(index, "search_numpy", index.search)
        scores, positions = search(queries, k, **options)
        return scores, positions

    def _parameters(self, effort: int) -> Any:
        faiss = evaluation_faiss.module("a search")
        effort = min(effort, self._all)
        if self.kind == "ivf":
            return faiss.SearchParametersIVF(nprobe=effort)
        return faiss.SearchParametersHNSW(efSearch=effort)

    def _all_near(self, query: NDArray[np.float32], score: float) -> NDArray[np.int64]:
        """Return all positions that may be nearer than the k-th nearest, which has this score."""
        _, _, positions = self._index.range_search(query, score - 2 * self._slack - 1e-7)
        found: NDArray[np.int64] = np.sort(positions)[None]
        return found

    def _in_order(self, queries: NDArray[np.float32], positions: NDArray[np.int64]) -> Found:
        """Return candidates sorted by cosine in float64, ties by position."""
        vectors = self._index.reconstruct_batch(positions.clip(min=0).ravel())
        return in_order(queries, positions, vectors.reshape(*positions.shape, self.size))


_CLASSES: dict[Kind, str] = {
    "flat": "IndexFlatIP",
    "hnsw": "IndexHNSWFlat",
    "ivf": "IndexIVFFlat",
}


def kind_for(count: int, size: int) -> Kind:
    """Return the default kind of index for a number of vectors of ``size`` numbers."""
    if not fits_memory(count, size):
        return "ivfpq"
    if count <= MOST_FLAT:
        return "flat"
    return "hnsw" if count <= MOST_HNSW else "ivf"


def fits_memory(count: int, size: int) -> bool:
    """Return whether a build can hold all vectors, float32, and FAISS's copy of them."""
    memory = environment.memory()
    return memory is None or 2 * 4 * count * size <= _MOST_IN_MEMORY * memory


def probes(lists: int) -> list[int]:
    """Return the numbers of lists to be tried."""
    return [2**i for i in range(11) if 2**i < 2 * lists]


def raised(
    values: Iterable[int],
    search: Callable[[int], Found],
    own: NDArray[np.int64],
    least: NDArray[Any],
    may_stall: bool = False,
) -> list[Trial]:
    """Search with one value after another until the recall is reached; return those tried.

    The queries are vectors of the index. What is found is a hit if its cosine is that of the last
    of the nearest. The nearest is the query itself, which is not counted; a copy of it is.

    Args:
        values: of the search parameter.
        search: returns the neighbours of the queries with a value, with exact cosines.
        own: (n,) positions of the queries.
        least: (n,) cosine of the last of the nearest of each query, less what rounding may do.
        may_stall: also stop when three more values have hardly added to the recall.
    """
    trials: list[Trial] = []
    for value in values:
        cosines, positions = search(value)
        most = cosines.shape[1] - 1
        hits = (cosines >= least[:, None]) & (positions != own[:, None])
        trials.append(Trial(value, float(hits.sum(1).clip(max=most).mean() / max(1, most))))
        stalled = may_stall and trials[-1].recall < trials[-4:][0].recall + _STALLED
        if trials[-1].recall >= TARGET_RECALL or (stalled and len(trials) > 3):
            break
    return trials


def until_enough(
    search: Callable[[NDArray[np.float32], int, int], tuple[NDArray[Any], NDArray[np.int64]]],
    queries: NDArray[np.float32],
    length: int,
    k: int,
    effort: int,
    most: int,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return ``length`` scores and positions, searching on where there are fewer than ``k``.

    ``search`` takes queries, a length and an effort, which is doubled up to ``most``.
    """
    scores, positions = search(queries, length, effort)
    while effort < most and len(short := np.flatnonzero(positions[:, k - 1] < 0)):
        effort *= 2
        scores[short], positions[short] = search(queries[short], length, effort)
    return scores, positions


def in_order(
    queries: NDArray[np.float32], positions: NDArray[np.int64], vectors: NDArray[Any]
) -> Found:
    """Return candidates, with vectors (n, c, d), by cosine in float64, ties by position."""
    cosines = np.einsum("qcd,qd->qc", _exact_unit(vectors), _exact_unit(queries))
    cosines = np.where(positions >= 0, cosines.round(_DECIMALS), -np.inf)
    order = np.lexsort((positions, -cosines), axis=-1)
    return Found(np.take_along_axis(cosines, order, 1), np.take_along_axis(positions, order, 1))


def in_blocks(
    search: Callable[[NDArray[np.float32]], Found],
    queries: NDArray[np.float32],
    k: int,
    bytes_per_query: int,
) -> Found:
    """Search for queries of any length, so many at a time that their candidates fit in memory."""
    step = max(1, _BLOCK_BYTES // bytes_per_query)
    found = [search(unit(queries[i : i + step])) for i in range(0, len(queries), step)]
    empty = Found(np.empty((0, k)), np.empty((0, k), np.int64))
    return Found(*(np.concatenate(parts) for parts in zip(empty, *found, strict=True)))


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Return vectors scaled to length 1, in FAISS's format; a zero vector stays as it is."""
    return np.ascontiguousarray(_exact_unit(vectors), np.float32)


def _exact_unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    length = np.linalg.norm(exact, axis=-1, keepdims=True)
    exact /= np.where(length == 0, 1, length)
    return exact


def _empty(faiss: Any, count: int, size: int, kind: Kind) -> Any:
    if kind == "flat":
        return faiss.IndexFlatIP(size)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(size, _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _CANDIDATES
        return index
    lists = lists_for(count)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = SEEN_PER_LIST
    return index


def lists_for(count: int) -> int:
    """Return the number of clusters for a number of vectors."""
    return max(1, min(round(4 * math.sqrt(count)), count // PER_LIST))


def _trained(index: Any, vectors: NDArray[np.float32], device: torch.device) -> Any:
    """Return an IVF index with trained centres, trained on a GPU if there is one."""
    copy = evaluation_faiss.on_gpu(index, device)
    if copy is None:
        index.train(vectors)
        return index
    copy.train(vectors)
    return evaluation_faiss.module("an index").index_gpu_to_cpu(copy)
