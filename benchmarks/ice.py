"""Time of ICE, forward and backward, against PML's NTXentLoss and the two products it needs.

    python benchmarks/ice.py [--dim 512] [--repeats 7] [--large] [--json PATH]

PML's ``NTXentLoss(temperature=1/64)`` has the same value; it enumerates positives x negatives. The
lower bound is two matrix products: the similarities and their gradient. All are timed in turn,
round by round; the numbers are medians. ``--large`` also takes one step at 65,536 x 512 and reports
its peak memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import torch
from _measure import medians, setting, time_in_turn, write
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor, nn

import zoo

BATCHES = ((90, 2), (6, 10), (64, 8))


def step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Run forward and backward."""
    embeddings.grad = None
    loss(embeddings, labels).backward()


def products(embeddings: Tensor) -> Tensor:
    """Compute the products that any loss on all similarities needs."""
    return (embeddings @ embeddings.T) @ embeddings


def measure(classes: int, per_class: int, dim: int, repeats: int, device: str) -> dict[str, Any]:
    """Time the contenders at one batch size."""
    embeddings = torch.randn(classes * per_class, dim, device=device).requires_grad_()
    fixed = embeddings.detach()
    labels = torch.arange(classes, device=device).repeat_interleave(per_class)
    ice, ntxent = zoo.build("losses", "ice", scale=64.0), NTXentLoss(temperature=1 / 64)
    seconds = time_in_turn(
        {
            "ice": lambda: step(ice, embeddings, labels),
            "two products": lambda: products(fixed),
        },
        repeats,
        at_least=0.2,
    )
    peer = {"ntxent": lambda: step(ntxent, embeddings, labels)}
    seconds |= time_in_turn(peer | {"ice again": lambda: step(ice, embeddings, labels)}, 3)
    median = medians(seconds)
    return {
        "batch": f"{classes}x{per_class}",
        "seconds": seconds,
        "median_seconds": median,
        "ice_to_products": median["ice"] / median["two products"],
        "ntxent_to_ice": median["ntxent"] / median["ice again"],
    }


def large(items: int, dim: int) -> dict[str, Any]:
    """Take one step with a batch whose similarity matrix would not fit into memory."""
    embeddings = torch.randn(items, dim).requires_grad_()
    labels = torch.arange(items) // 4
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    step(zoo.build("losses", "ice", scale=64.0), embeddings, labels)
    return {
        "items": items,
        "seconds": time.perf_counter() - start,
        "peak_mb_above_input": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "whole_matrix_mb": items**2 * 4 / 2**20,
        "finite": bool(embeddings.grad is not None and embeddings.grad.isfinite().all()),
    }


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--large", action="store_true", help="one step at 65,536 items as well")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    torch.manual_seed(0)
    report: dict[str, Any] = {"dim": args.dim, **setting(), "batches": []}
    print(f"{report['device']}, load {report['load']}")
    if args.large:  # first, since the peak is that of the process
        report["large"] = large(65_536, args.dim)
        print("  ".join(f"{key} {value}" for key, value in report["large"].items()))
    print(f"{'batch':>8}{'ice ms':>10}{'x products':>12}{'ntxent ms':>12}{'x ice':>10}")
    for classes, per_class in BATCHES:
        found = measure(classes, per_class, args.dim, args.repeats, args.device)
        report["batches"].append(found)
        median = found["median_seconds"]
        print(
            f"{found['batch']:>8}{1e3 * median['ice']:>10.2f}{found['ice_to_products']:>12.2f}"
            f"{1e3 * median['ntxent']:>12.1f}{found['ntxent_to_ice']:>10.1f}"
        )
    write(args.json, report)


if __name__ == "__main__":
    main()
