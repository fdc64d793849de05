"""The tables of docs/scale.md: what runs and indexes of any size cost, by formula.

The constants are measured (results/benchmarks/), or are numbers of a data sheet, which bound the
time from below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from _pages import ROOT

from zoo.search.neighbours import lists_for

FLOAT = 4  # bytes
DIM = 512
GPUS = (1, 8, 64)
IMAGES = {"120 thousand": 120_000, "10 million": 10**7, "1 billion": 10**9}
NETWORK = "torchvision.resnet50"
CACHE_SIDE = 256  # pixels

# NVIDIA A100 80GB SXM, data sheet (June 2021), and the network of NVIDIA's DGX A100.
GPU_BYTES = 80e9
BF16 = 312e12  # operations a second
FP32 = 19.5e12
NVLINK = 300e9  # bytes a second, in each direction
INFINIBAND = 25e9  # of one GPU to another machine: 200 Gb/s
PER_MACHINE = 8


def step() -> str:
    """Return the table of a training step."""
    network = _report("scale")["networks"][NETWORK]
    held, parameters = matrices(), network["parameters"] * FLOAT
    rows = []
    for each in (64, 1024):
        for gpus in GPUS:
            batch = each * gpus
            others = (gpus - 1) / gpus
            gathered = batch * DIM * FLOAT * others
            summed = 2 * others * (parameters + batch * DIM * FLOAT)
            operations = 3 * network["forward_flop"] * each
            matrix = held * FLOAT * batch**2
            rows.append(
                [
                    f"{gpus}",
                    f"{batch:,}",
                    _bytes(each * network["kept_bytes"]),
                    _bytes(gathered),
                    _bytes(summed),
                    _bytes(matrix),
                    _bytes(matrix / gpus),
                    _seconds(operations / BF16),
                    _seconds((gathered + summed) / _wire(gpus)),
                ]
            )
    heads = ["GPUs", "batch", "activations", "embeddings", "gradients", "loss, whole"]
    return _table([*heads, "loss, in rows", "computing ≥", "sending ≥"], rows)


def epoch() -> str:
    """Return the table of an epoch."""
    network = _report("scale")["networks"][NETWORK]
    loading = _report("pipeline")
    speeds = loading["loading"]["images_per_core_second"]
    rows = []
    for title, images in IMAGES.items():
        rows.append(
            [
                title,
                _bytes(images * loading["bytes_of_a_jpeg"]),
                _bytes(images * 3 * CACHE_SIDE**2),
                _seconds(images / speeds["zoo, no cache"]),
                _seconds(images / speeds["zoo, cache"]),
                *(_seconds(3 * network["forward_flop"] * images / BF16 / gpus) for gpus in GPUS),
            ]
        )
    heads = ["images", "JPEGs", "cache", "decoding, one core", "from the cache, one core"]
    return _table([*heads, *(f"GPUs: {gpus} ≥" for gpus in GPUS)], rows)


def evaluation() -> str:
    """Return the table of an exact evaluation."""
    rows = []
    for title, images in IMAGES.items():
        for gpus in GPUS:
            memory = _evaluated_bytes(images, gpus)
            rows.append(
                [
                    title,
                    f"{gpus}",
                    _bytes(memory) + ("" if memory < GPU_BYTES else ", too much"),
                    _bytes(images * DIM * 8 / 2 if gpus > 1 else 0),
                    _seconds(images**2 * DIM / (gpus * FP32)),
                    _seconds(images**2 * DIM / (gpus * _cpu_rate())),
                ]
            )
    heads = ["images", "processes", "memory of one", "sent by one", "time on GPUs ≥"]
    return _table([*heads, "time on as many CPU threads"], rows)


def limits() -> str:
    """Return the table of the largest exact evaluations."""
    constants = _report("scale")["evaluation_bytes"]
    rows = []
    for gpus in GPUS:
        each = (constants["number"] + FLOAT) * DIM / gpus + constants["label"]
        rows.append(
            [
                f"{gpus}",
                f"{GPU_BYTES / each / 1e6:,.0f} million",
                f"{math.sqrt(3600 * gpus * FP32 / DIM) / 1e6:,.0f} million",
            ]
        )
    return _table(["GPUs", "images that memory holds", "images in an hour, at most"], rows)


def index_measured() -> str:
    """Return the table of benchmarks/index.py."""
    report = _report("index")
    rows = []
    for name, found in report["kinds"].items():
        disk = sum(found["on_disk_per_image"].values())
        kind = name.split(",")[0]
        rows.append(
            [
                name,
                f"{found['recall_at_10']:.3f}",
                f"{found['parameter']} {found['value']}" if found["parameter"] else "–",
                f"{found['ms_per_query']:.2f}",
                f"{found['build_seconds']:,.0f}",
                _bytes(found["build_peak"]),
                f"{disk:.0f}",
                f"{found['memory_per_image']:.0f}",
                f"{in_memory(kind, report['items'], report['dim']):.0f}",
            ]
        )
    heads = ["kind", "recall@10", "effort", "ms a query", "build, s", "build, memory"]
    table = _table([*heads, "disk, B", "memory, B", "by formula, B"], rows)
    where = f"{report['items']:,} x {report['dim']}; {report['device']}; FAISS {report['faiss']}"
    return f"{table}\n{where}.\n"


def index_sizes() -> str:
    """Return the table of what an index of each kind takes."""
    names = _report("scale")["name_bytes"]["memory"]
    rows = []
    for title, images in IMAGES.items():
        rows.append(
            [
                title,
                *(
                    _bytes(images * in_memory(kind, images, DIM))
                    for kind in ("flat", "hnsw", "ivf", "ivfpq")
                ),
                _bytes(images * (compressed(DIM) + 2 * DIM)),
                _bytes(images * names),
                _seconds(images * lists_for(images) * 2 * DIM / _product_rate()),
            ]
        )
    heads = ["images", "flat", "hnsw", "ivf", "ivfpq", "ivfpq, disk", "names", "assigning"]
    return _table(heads, rows)


def in_memory(kind: str, images: int, dim: int) -> float:
    """Return the bytes of an index per image, that a search keeps in memory, without names."""
    lists, width = lists_for(images), -(-dim // 4) * 4
    return {
        "flat": FLOAT * dim,
        "hnsw": FLOAT * dim + FLOAT * (64 + 1) + 12,  # links, some of higher levels, offset, level
        "ivf": FLOAT * dim + 8 + 8 + FLOAT * dim * lists / images,  # position, place of each
        "ivfpq": FLOAT * width * (lists + 256 + dim) / images,  # centres, codes, rotation
    }[kind]


def compressed(dim: int) -> int:
    """Return the bytes of an image in the lists: its code and its position."""
    return -(-dim // 4) + 8


def _evaluated_bytes(images: int, processes: int) -> float:
    constants = _report("scale")["evaluation_bytes"]
    each = (constants["number"] + FLOAT) * DIM / processes
    return images * (each + constants["label"])


def images_a_second() -> float:
    """Return the most images that a GPU can train on, at the peak of its data sheet."""
    return BF16 / (3 * _report("scale")["networks"][NETWORK]["forward_flop"])


def matrices() -> float:
    """Return how many float32 matrices (N, N) the multi-similarity loss holds, as measured."""
    found = _report("processes")["loss"]["multi_similarity"]
    held: float = found["peak"][0] / (FLOAT * found["images"] ** 2)
    return held


def _cpu_rate() -> float:
    """Return the operations a second of Recall@K in one thread: pairs are compared once."""
    found = _report("processes")["recall"]
    rate: float = found["items"] ** 2 * found["dim"] / found["seconds"][0]
    return rate


def _product_rate() -> float:
    """Return the operations a second of a matrix product in two threads."""
    found = _report("recall")
    seconds = found["data"]["clustered"]["median_seconds"]["bare product"]
    rate: float = 2 * found["items"] ** 2 * found["dim"] / seconds
    return rate


def _wire(gpus: int) -> float:
    return NVLINK if gpus <= PER_MACHINE else INFINIBAND


def _bytes(number: float) -> str:
    if number < 1e5:
        return "0" if not number else "< 0.1 MB"
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size or unit == "MB":
            shown = number / size
            return f"{shown:.1f} {unit}" if shown < 10 else f"{shown:,.0f} {unit}"
    raise AssertionError


def _seconds(number: float) -> str:
    units = (("years", 365.25 * 86400), ("days", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for unit, size in units:
        if number >= (1 if unit == "s" else 2 * size):
            shown = number / size
            return f"{shown:.1f} {unit}" if shown < 10 else f"{shown:,.0f} {unit}"
    return f"{1e3 * number:.1f} ms" if number else "0"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _report(name: str) -> dict[str, Any]:
    path = ROOT / "results" / "benchmarks" / f"{name}.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report
