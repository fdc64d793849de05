"""Compress vectors that are in a file: train on a sample, encode part by part, sort into lists.

Memory holds the sample, or one part. The codes of each part are sorted by list and kept in a
temporary file; then the lists are put together from all parts, and written one after another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.evaluation import faiss as evaluation_faiss
from zoo.progress import Reporter
from zoo.search.compressed import ID_BYTES, parts_of, row_bytes
from zoo.search.neighbours import AT_ONCE, SEEN_PER_LIST, lists_for, unit

LEAST = 256
"""Vectors that the compression needs: each byte is the number of one of so many centres."""

_NUMBERS = 4  # of a vector that become a byte
_ROTATIONS = 10  # rounds of training of the rotation
_AT_A_TIME = 64 << 20  # bytes of lists that are put together in memory


class _Run(NamedTuple):
    """The vectors of one part, sorted by list, in the temporary file."""

    codes: NDArray[np.uint8]  # (n, bytes)
    positions: NDArray[np.int64]  # (n,)
    starts: NDArray[np.int64]  # (lists + 1,) where each list begins


def bytes_on_disk(count: int, size: int) -> int:
    """Return what the lists of ``count`` vectors of ``size`` numbers take, while they are made."""
    return 2 * count * (_bytes_of_code(size) + ID_BYTES)  # also in the temporary file


def check_enough(count: int) -> None:
    """Raise a UserError if there are too few images."""
    if count < LEAST:
        raise UserError(
            f"kind ivfpq needs {LEAST} images or more, and there are {count}; use --kind flat"
        )


def trained(vectors: NDArray[np.float16], rotated: bool = True) -> Any:
    """Return FAISS's index without vectors, trained on a sample of vectors (N, d).

    Without ``rotated``, the vectors are compressed as they are.

    Raises:
        UserError: there are too few vectors.
    """
    faiss = evaluation_faiss.module("an index")
    count, size = vectors.shape
    check_enough(count)
    lists, code = lists_for(count), _bytes_of_code(size)
    width = code * _NUMBERS  # the rotation adds zeros
    centres = faiss.IndexFlatIP(width)
    ivf = faiss.IndexIVFPQ(centres, width, lists, code, 8, faiss.METRIC_INNER_PRODUCT)
    ivf.cp.max_points_per_centroid = SEEN_PER_LIST
    rotation: Any = faiss.RemapDimensionsTransform(size, width, False)
    if rotated:
        rotation = faiss.OPQMatrix(size, code, width)
        rotation.niter = _ROTATIONS
        rotation.pq = codebook = faiss.ProductQuantizer(width, code, 8)
        codebook.cp.min_points_per_centroid = 1
    for settings in (ivf.cp, ivf.pq.cp):
        settings.min_points_per_centroid = 1  # else FAISS prints a warning
    index = faiss.IndexPreTransform(rotation, ivf)
    index.train(_sample(vectors, max(SEEN_PER_LIST * lists, 256 * 256)))
    if rotated:
        rotation.pq = None
    return index


def write_index(index: Any, sizes: NDArray[np.int64], file: BinaryIO) -> None:
    """Write what :meth:`Compressed.read` reads: FAISS's index, and the sizes of its lists."""
    faiss = evaluation_faiss.module("an index")
    faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, AT_ONCE))
    np.save(file, sizes)


def write_lists(
    index: Any, vectors: NDArray[np.float16], file: BinaryIO, folder: Path, reporter: Reporter
) -> NDArray[np.int64]:
    """Write the lists of vectors (N, d) in the format of FAISS; return their sizes.

    The temporary file, which is in ``folder``, has no name, so none is left if the process is
    killed.
    """
    lists = int(evaluation_faiss.module("an index").extract_index_ivf(index).nlist)
    parts = parts_of(vectors)
    with tempfile.TemporaryFile(dir=folder) as kept:
        runs = [
            _kept(index, vectors, part, lists, kept)
            for part in reporter.track(parts, len(parts), "compressing")
        ]
        ends = np.zeros(lists + 1, np.int64)
        for run in runs:
            ends += run.starts
        for some in _spans(ends, row_bytes(index)):
            _write_span(runs, some, file)
    sizes: NDArray[np.int64] = np.diff(ends)
    return sizes


def _bytes_of_code(size: int) -> int:
    return -(-size // _NUMBERS)


def _sample(vectors: NDArray[np.float16], most: int) -> NDArray[np.float32]:
    """Return some of the vectors, of length 1; the file is read from its beginning to its end."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(vectors), min(most, len(vectors)), replace=False))
    found = np.empty((len(rows), vectors.shape[1]), np.float32)
    for part in parts_of(found):
        found[part] = unit(vectors[rows[part]])
    return found


def _kept(
    index: Any, vectors: NDArray[np.float16], part: slice, lists: int, file: BinaryIO
) -> _Run:
    """Encode a part of the vectors and keep it in a file, sorted by list."""
    encoded = index.sa_encode(unit(vectors[part]))
    width = encoded.shape[1] - (
        row_bytes(index) - ID_BYTES
    )  # of the number of the list, low byte first
    places = np.arange(width, dtype=np.int64) * 8
    list_of = (encoded[:, :width].astype(np.int64) << places).sum(1)
    order = np.argsort(list_of, kind="stable")
    starts = np.zeros(lists + 1, np.int64)
    np.cumsum(np.bincount(list_of, minlength=lists), out=starts[1:])
    codes = np.ascontiguousarray(encoded[order, width:])
    return _Run(*(_mapped(array, file) for array in (codes, order + part.start, starts)))


def _mapped(array: NDArray[Any], file: BinaryIO) -> NDArray[Any]:
    """Append an array to a file, and return it as it is there."""
    file.seek(0, 2)
    offset = file.tell()
    file.write(array.tobytes())
    file.flush()
    return np.memmap(file, array.dtype, "r", offset, array.shape)


def _spans(starts: NDArray[np.int64], row: int) -> Iterator[slice]:
    """Yield slices of lists that fit in memory together; a list alone may be larger."""
    first, last = 0, len(starts) - 1
    while first < last:
        most = starts[first] + _AT_A_TIME // row
        end = max(first + 1, int(np.searchsorted(starts, most, "right")) - 1)
        yield slice(first, min(end, last))
        first = min(end, last)


def _write_span(runs: list[_Run], some: slice, file: BinaryIO) -> None:
    """Write some lists, one after another: for each, the codes and then the positions."""
    codes, positions, list_of = [], [], []
    for run in runs:
        bounds = np.asarray(run.starts[some.start : some.stop + 1])
        codes.append(run.codes[bounds[0] : bounds[-1]])
        positions.append(run.positions[bounds[0] : bounds[-1]])
        list_of.append(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
    order = np.argsort(np.concatenate(list_of), kind="stable")
    all_codes, all_positions = (np.concatenate(each)[order] for each in (codes, positions))
    ends = np.cumsum(np.bincount(np.concatenate(list_of), minlength=some.stop - some.start))
    for one_codes, one_positions in zip(
        np.split(all_codes, ends[:-1]), np.split(all_positions, ends[:-1]), strict=True
    ):
        file.write(one_codes.tobytes())
        file.write(one_positions.tobytes())
