"""What an index of each kind costs: bytes on disk and in memory, time, and what it finds.

    python benchmarks/index.py [--items 1000000] [--dim 64] [--json PATH]  # 15 minutes on two cores

The items are clustered, as a trained network's are. Each index is built in a process of its own,
which measures time and memory, and is opened in another. Memory is what the process cannot give
back (RssAnon), above what it had before; files that are mapped are counted apart. Queries are other
items, searched one at a time in one thread; what they find is compared with exact search.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from _measure import setting, write
from recall import clustered

from zoo.progress import Reporter
from zoo.search import compressing, parts
from zoo.search.compressed import REFINE, Compressed
from zoo.search.neighbours import Neighbours, unit

QUERIES, TIMED, K = 1000, 300, 10
CPU = torch.device("cpu")
IN_MEMORY = ("flat", "ivf", "hnsw")
REFINED = (0, 50, REFINE, 500)


def make(folder: Path, items: int, dim: int) -> None:
    """Write the items, the queries and the exact neighbours of these."""
    torch.manual_seed(0)
    everything = unit(clustered(items + QUERIES, dim)[0].numpy())
    own = np.linspace(0, len(everything) - 1, QUERIES).astype(int)
    queries = everything[own]
    vectors = np.delete(everything, own, axis=0).astype(np.float16)
    vectors.tofile(folder / "vectors")
    _, positions = faiss.knn(queries, unit(vectors), K, metric=faiss.METRIC_INNER_PRODUCT)
    np.savez(folder / "queries.npz", queries=queries, positions=positions)


def memory() -> tuple[int, int]:
    """Return the bytes of this process that are its own, and those of files that are mapped."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, mapped = (int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))
    return own, mapped


@contextmanager
def peak(found: dict[str, Any]) -> Iterator[None]:
    """Measure time and the highest memory of a block, in bytes."""
    before, done, most = memory()[0], threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], memory()[0] - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    yield
    found["build_seconds"] = round(time.perf_counter() - began, 1)
    done.set()
    watcher.join()
    found["build_peak"] = most[0]


def build(folder: Path, kind: str, dim: int) -> dict[str, Any]:
    """Build an index from the file of vectors, tune it, and write it."""
    found: dict[str, Any] = {}
    stored = parts.vectors_in(folder / "vectors", dim)
    with peak(found):
        if kind in IN_MEMORY:
            vectors = unit(stored)
            index = Neighbours.of(vectors, kind, CPU)  # type: ignore[arg-type]
            values = {0: index.tune(vectors)}
            with (folder / kind).open("wb") as file:
                index.write(file)
        else:
            trained = compressing.trained(stored, rotated=kind == "ivfpq")
            with (folder / f"{kind}.lists").open("wb") as file:
                sizes = compressing.write_lists(trained, stored, file, folder, Reporter(quiet=True))
            with (folder / kind).open("wb") as file:
                compressing.write_index(trained, sizes, file)
            values = {REFINE: read(folder, kind, dim, REFINE).tune(stored)}
    if kind not in IN_MEMORY:
        values |= {n: read(folder, kind, dim, n).tune(stored) for n in REFINED if n != REFINE}
    chosen = {refine: trials[-1].value if trials else 0 for refine, trials in values.items()}
    return found | {"values": chosen}


def read(folder: Path, kind: str, dim: int, refine: int) -> Neighbours | Compressed:
    """Open an index."""
    if kind in IN_MEMORY:
        return Neighbours.read(folder / kind, kind, CPU)  # type: ignore[arg-type]
    vectors = parts.vectors_in(folder / "vectors", dim)
    with (folder / kind).open("rb") as file, (folder / f"{kind}.lists").open("rb") as lists:
        return Compressed.read(file, lists, vectors if refine else None, refine)


def use(folder: Path, kind: str, dim: int, refine: int, value: int) -> dict[str, Any]:
    """Search with an index that another process built, in one thread."""
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    with np.load(folder / "queries.npz") as known:
        queries, wanted = known["queries"], known["positions"]
    before = memory()
    index = read(folder, kind, dim, refine)
    index.value = value
    index.search(queries[:1], K)
    seconds = []
    for query in queries[:TIMED]:
        began = time.perf_counter()
        index.search(query[None], K)
        seconds.append(time.perf_counter() - began)
    positions = index.search(queries, K).positions
    shares = [len({*a} & {*b}) / K for a, b in zip(positions, wanted, strict=True)]
    own, mapped = (after - was for after, was in zip(memory(), before, strict=True))
    return {
        "parameter": index.parameter,
        "value": index.value,
        "recall_at_10": round(float(np.mean(shares)), 4),
        "ms_per_query": round(1e3 * statistics.median(seconds), 3),
        "memory_per_image": round(own / index.count, 1),
        "mapped_per_image": round(mapped / index.count, 1),
    }


def on_disk(folder: Path, kind: str, refine: int, items: int) -> dict[str, float]:
    """Return the bytes per image of each file."""
    files = {"index": folder / kind, "lists": folder / f"{kind}.lists"}
    if refine:
        files["vectors"] = folder / "vectors"
    return {
        key: round(path.stat().st_size / items, 2) for key, path in files.items() if path.exists()
    }


def apart(function: Any, *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="PATH")
    given = parser.parse_args()
    report = {"items": given.items, "dim": given.dim, **setting(), "faiss": faiss.__version__}
    report["kinds"] = {}
    print(f"{'':30}{'build s':>9}{'ms':>8}{'recall':>8}{'disk':>8}{'memory':>8}  bytes per image")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart(make, folder, given.items, given.dim)
        for kind in (*IN_MEMORY, "ivfpq", "ivfpq, not rotated"):
            built = apart(build, folder, kind, given.dim)
            values = built.pop("values")
            for refine in (0,) if kind in IN_MEMORY else REFINED:
                found = built | apart(use, folder, kind, given.dim, refine, values[refine])
                found["on_disk_per_image"] = on_disk(folder, kind, refine, given.items)
                name = kind if kind in IN_MEMORY else f"{kind}, refine {refine}"
                report["kinds"][name] = found
                print(
                    f"{name:30}{found['build_seconds']:9.1f}{found['ms_per_query']:8.2f}"
                    f"{found['recall_at_10']:8.3f}{sum(found['on_disk_per_image'].values()):8.1f}"
                    f"{found['memory_per_image']:8.1f}",
                    flush=True,
                )
    write(given.json, report)


if __name__ == "__main__":
    main()
