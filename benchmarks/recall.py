"""Time of exact Recall@{1,10,100,1000}, against FAISS and against the bare matrix product.

    python benchmarks/recall.py [--items 20000] [--dim 512] [--repeats 5] [--json PATH]

The peer is FAISS's flat search for the 1,001 nearest: it gives the neighbours for the same four
numbers, without counting hits. The bare product computes the same float32 tiles and does nothing
with them: a lower bound for any exact method that compares all pairs. Retrieval among the queries
themselves can go below it, because half of these pairs mirror the others. All are timed in turn,
round by round, so that a busy machine slows them alike; the numbers are medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import torch
from _measure import medians, setting, time_in_turn, write
from torch import Tensor

from zoo.evaluate import recall_at_k
from zoo.evaluation.items import TILE_SIDE

KS = (1, 10, 100, 1000)
PER_CLASS = 20
SIDE = TILE_SIDE["cpu"]


def clustered(items: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return items and labels in classes of 20, like a trained embedding: Recall@1 about 0.8.

    The spectrum decays, like that of a network's output; in white noise of 512 dimensions all
    classes would be about equally far from each other.
    """
    spectrum = torch.arange(1, dim + 1).pow(-0.5)
    labels = torch.arange(items) // PER_CLASS
    centres = torch.randn(int(labels[-1]) + 1, dim)
    return (centres[labels] + 1.34 * torch.randn(items, dim)) * spectrum, labels


def random(items: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return items that are independent of their labels: the best match has a large rank."""
    return torch.randn(items, dim), torch.arange(items) // PER_CLASS


def bare_product(unit: Tensor) -> None:
    """Compute all tiles of the similarity matrix, without using them."""
    tile = unit.new_empty(SIDE, SIDE)
    for rows in unit.split(SIDE):
        for cols in unit.split(SIDE):
            torch.mm(rows, cols.T, out=tile[: len(rows), : len(cols)])


def faiss_search(unit: Tensor, k: int) -> None:
    """Find the ``k`` nearest of every item with FAISS's exact index."""
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit.numpy())
    index.search(unit.numpy(), k)


def measure(vectors: Tensor, labels: Tensor, repeats: int) -> dict[str, Any]:
    """Time every contender on one data set."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    gallery = {"gallery": vectors.clone(), "gallery_labels": labels}
    tasks: dict[str, Callable[[], Any]] = {
        "zoo": lambda: recall_at_k(vectors, labels, KS),
        "zoo, separate gallery": lambda: recall_at_k(vectors, labels, KS, **gallery),
        "bare product": lambda: bare_product(unit),
        "faiss k=101": lambda: faiss_search(unit, 101),
        "faiss k=1001": lambda: faiss_search(unit, 1001),
    }
    seconds = time_in_turn(tasks, repeats)
    median = medians(seconds)
    return {
        "recall": recall_at_k(vectors, labels, KS),
        "seconds": seconds,
        "median_seconds": median,
        "to_bare_product": {name: value / median["bare product"] for name, value in median.items()},
        "faiss_to_zoo": median["faiss k=1001"] / median["zoo"],
    }


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    report: dict[str, Any] = {"items": args.items, "dim": args.dim, **setting()}
    report["faiss"] = faiss.__version__
    print(f"{report['device']}, load {report['load']}")
    report["data"] = {}
    for make in (clustered, random):
        torch.manual_seed(0)
        result = report["data"][make.__name__] = measure(*make(args.items, args.dim), args.repeats)
        recall = "  ".join(f"R@{k} {value:.4f}" for k, value in result["recall"].items())
        print(f"\n{make.__name__} data: {recall}")
        print(f"{'':24}{'median s':>10}{'best s':>10}{'x bare':>10}")
        for name, values in result["seconds"].items():
            median, ratio = result["median_seconds"][name], result["to_bare_product"][name]
            print(f"{name:24}{median:10.3f}{min(values):10.3f}{ratio:10.2f}")
        print(f"faiss k=1001 takes {result['faiss_to_zoo']:.1f} times as long as zoo")
    write(args.json, report)


if __name__ == "__main__":
    main()
