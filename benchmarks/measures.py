"""Time of MAP@R and R-precision, against our Recall@K and against pytorch-metric-learning.

    python benchmarks/measures.py [--dim 512] [--repeats 3] [--json PATH]

The peer is PML's AccuracyCalculator with the same two measures: it searches the R nearest with
FAISS, in float32. Recall@K of this project compares the same pairs, in float32 where that is exact
enough. All are timed in turn, round by round; the numbers are medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measure import medians, setting, time_in_turn, write
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from zoo.evaluate import recall_at_k
from zoo.measures import measure

NAMES = ("map_at_r", "r_precision")
SIZES = {"as CUB-200-2011": (100, 59), "a tenth of SOP": (1_132, 5)}
"""Numbers of classes, and of images per class."""


def clustered(classes: int, each: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return items and labels like a trained embedding, with a decaying spectrum."""
    labels = torch.arange(classes).repeat_interleave(each)
    items = torch.randn(classes, dim)[labels] + 1.34 * torch.randn(len(labels), dim)
    return items * torch.arange(1, dim + 1).pow(-0.5), labels


def pml(unit: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the same two measures, computed by pytorch-metric-learning."""
    include = ("mean_average_precision_at_r", "r_precision")
    found: dict[str, float] = AccuracyCalculator(
        include=include, k="max_bin_count", device=torch.device("cpu")
    ).get_accuracy(unit, labels)
    return found


def compare(vectors: Tensor, labels: Tensor, repeats: int) -> dict[str, Any]:
    """Time every contender on one data set."""
    unit = torch.nn.functional.normalize(vectors)
    tasks: dict[str, Callable[[], Any]] = {
        "zoo": lambda: measure(NAMES, vectors, labels),
        "zoo, Recall@K": lambda: recall_at_k(vectors, labels, (1, 10)),
        "pml": lambda: pml(unit, labels),
    }
    seconds = time_in_turn(tasks, repeats)
    median = medians(seconds)
    return {
        "items": len(labels),
        "values": measure(NAMES, vectors, labels).values,
        "values_of_pml": pml(unit, labels),
        "seconds": seconds,
        "median_seconds": median,
        "to_recall": median["zoo"] / median["zoo, Recall@K"],
        "pml_to_zoo": median["pml"] / median["zoo"],
    }


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    report: dict[str, Any] = {"dim": args.dim, **setting(), "data": {}}
    print(f"{report['device']}, load {report['load']}")
    for name, (classes, each) in SIZES.items():
        torch.manual_seed(0)
        found = compare(*clustered(classes, each, args.dim), args.repeats)
        report["data"][name] = found
        print(f"\n{name}: {found['values']}")
        for task, value in found["median_seconds"].items():
            print(f"{task:16}{value:10.3f} s")
        print(f"{found['to_recall']:.1f} times Recall@K; PML {found['pml_to_zoo']:.1f} times zoo")
    write(args.json, report)


if __name__ == "__main__":
    main()
