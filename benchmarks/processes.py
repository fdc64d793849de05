"""Several processes against one: the gradients, the time and memory of Recall@K and of a loss.

    python benchmarks/processes.py [--items 100000] [--dim 128] [--images 4096] [--json PATH]

Every process has one thread, so that two processes have two cores and one has one. The gradients
are those of two losses of pytorch-metric-learning with weights of their own: trained by PML's own
recipe (both in DistributedDataParallel, the loss in DistributedLossWrapper), and by the zoo.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import _in_processes as tasks
import torch
from _measure import setting, write

from zoo.parallel.launch import launch
from zoo.progress import Reporter

QUIET = Reporter(quiet=True)


def in_turn(processes: int, function: Any, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Return what one process returns, and what several return."""
    return tuple(launch(n, function, *arguments, reporter=QUIET) for n in (1, processes))  # type: ignore[return-value]


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n = given.processes
    report: dict[str, Any] = {"setting": setting(), "processes": n}

    one, several = in_turn(n, tasks.gradients)
    report["gradients"] = {
        name: {how: several[0][name][how] / norm for how, norm in norms.items()}
        for name, norms in one[0].items()
    }
    print(f"gradient with {n} processes / with one")
    for name, norms in report["gradients"].items():
        print(f"  {name}: " + ", ".join(f"{how} {r:.4f}" for how, r in norms.items()))

    one, several = in_turn(n, tasks.recall, given.items, given.dim, given.repeats)
    assert all(torch.equal(one[0]["ranks"], found["ranks"]) for found in several)
    report["recall"] = {
        "items": given.items,
        "dim": given.dim,
        **ratios(one, several, "kilobytes"),
        "equal_ranks": True,
    }
    print(
        f"Recall@K, {given.items:,} x {given.dim}: {shown(report['recall'])}; the ranks are equal"
    )

    report["loss"] = {}
    for name in ("ice", "multi_similarity"):
        one, several = in_turn(n, tasks.loss, name, given.images, given.dim, given.repeats)
        values = [found["value"] for found in (*one, *several)]
        report["loss"][name] = {
            "images": given.images,
            **ratios(one, several, "peak"),
            "difference": max(values) - min(values),
        }
        print(f"{name}, {given.images:,} images: {shown(report['loss'][name])}")
    write(given.json, report)


def ratios(one: list[Any], several: list[Any], memory: str) -> dict[str, Any]:
    """Return medians and how many times less several processes take than one."""
    seconds = [statistics.median(found[0]["seconds"]) for found in (one, several)]
    most = [max(part[memory] for part in found) for found in (one, several)]
    return {
        "seconds": [round(s, 4) for s in seconds],
        "faster": round(seconds[0] / seconds[1], 2),
        memory: most,
        "smaller": round(most[0] / max(1, most[1]), 2),
    }


def shown(found: dict[str, Any]) -> str:
    """Return the ratios in words."""
    return f"{found['faster']} times as fast, {found['smaller']} times less memory per process"


if __name__ == "__main__":
    main()
