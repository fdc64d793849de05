"""Time and peak memory of a step of each loss of the paper's Table 3, against the closest of PML.

    python benchmarks/losses.py [--dim 512] [--repeats 5] [--json PATH] [NAME ...]

A step is forward and backward on random embeddings, with batches of 180 (30x6) and 1,024 (64x16)
images. Every contender runs in its own process, ours and PML's in turn; its memory is the growth of
this process. The memory is limited: a loss that needs more fails. Where PML has no similar loss,
the peer is its triplet loss on all triplets.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import setting, write
from pytorch_metric_learning import distances, losses, miners
from torch import Tensor

import zoo

BATCHES = ((30, 6), (64, 16))
LIMIT = 14 * 2**30  # bytes of a process
CLASSES = 1_000  # of the data set, for losses with weights for each class
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cce": {"num_classes": CLASSES},
    "proxy_nca": {"num_classes": CLASSES},
    "struct_clust": {"gamma": 1.0},
}

Step = Callable[[Tensor, Tensor], Tensor]


def peers(dim: int) -> dict[str, tuple[str, Callable[[], Step]]]:
    """Return the loss of PML that each loss is compared with."""
    raw = {"distance": distances.LpDistance(normalize_embeddings=False)}
    triplets = ("TripletMarginLoss on all triplets", lambda: losses.TripletMarginLoss())
    return {
        "ice": ("NTXentLoss", lambda: losses.NTXentLoss(temperature=1 / 64)),
        "rll": ("RankedListLoss", lambda: losses.RankedListLoss(margin=0.4, Tn=10, alpha=1.2)),
        "proxy_nca": ("ProxyNCALoss", lambda: losses.ProxyNCALoss(CLASSES, dim)),
        "spectral_clust": triplets,
        "struct_clust": triplets,
        "npair_mc": ("NPairsLoss", losses.NPairsLoss),
        "lifted_struct": ("LiftedStructureLoss", lambda: losses.LiftedStructureLoss(**raw)),
        "triplet_semihard": ("TripletMarginMiner, TripletMarginLoss", _mined_triplets),
        "cce": ("NormalizedSoftmaxLoss", lambda: losses.NormalizedSoftmaxLoss(CLASSES, dim)),
    }


def _mined_triplets() -> Step:
    mine, loss = miners.TripletMarginMiner(0.2, "semihard"), losses.TripletMarginLoss(0.2)
    return lambda x, y: loss(x, y, mine(x, y))


def ours(name: str, dim: int) -> Step:
    """Return our loss."""
    arguments = dict(ARGUMENTS.get(name, {}))
    if "num_classes" in arguments:
        arguments["embedding_size"] = dim
    loss: Step = zoo.build("losses", name, **arguments)
    return loss


def measure_one(step: Step, classes: int, per_class: int, dim: int, repeats: int) -> dict[str, Any]:
    """Return seconds of each step and the peak memory in MB, within the limit."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    torch.manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(per_class)
    x = torch.randn(len(labels), dim).requires_grad_()
    few = torch.arange(0, len(labels), per_class // 2)[:16]
    step(x[few], labels[few]).backward()  # loads what any step needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    try:
        for _ in range(repeats + 1):
            x.grad = None
            start = time.perf_counter()
            step(x, labels).backward()
            seconds.append(time.perf_counter() - start)
    except (RuntimeError, MemoryError) as error:
        return {"failed": str(error).splitlines()[0][:100]}
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds[1:], "median_seconds": median(seconds[1:]), "peak_mb": grown}


def in_a_process(name: str, side: str, batch: tuple[int, int], dim: int, repeats: int) -> Any:
    """Measure one contender in a fresh process."""
    command = [sys.executable, __file__, "--one", name, side, *map(str, (*batch, dim, repeats))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.splitlines() or ["killed"])[-1][:100]}
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, side: str, *numbers: str) -> None:
    """Measure one contender in its process, and print the result as JSON."""
    classes, per_class, dim, repeats = map(int, numbers)
    step = ours(name, dim) if side == "ours" else peers(dim)[name][1]()
    print(json.dumps(measure_one(step, classes, per_class, dim, repeats)))


def show(found: dict[str, Any]) -> str:
    """Return milliseconds and megabytes, or a note that it failed."""
    if "failed" in found:
        return f"{'fails':>10}{'> ' + str(LIMIT // 2**30) + ' GB':>9}"
    return f"{1e3 * found['median_seconds']:>10.1f}{found['peak_mb']:>9.0f}"


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    report: dict[str, Any] = {"dim": args.dim, **setting(), "rows": []}
    print(f"{report['device']}, load {report['load']}")
    print(f"{'loss':<18}{'batch':>6}{'ms':>10}{'MB':>9}{'PML ms':>10}{'MB':>9}  peer")
    table = peers(args.dim)
    for name in args.names or table:
        for batch in BATCHES:
            found = {
                side: in_a_process(name, side, batch, args.dim, args.repeats)
                for side in ("ours", "pml")
            }
            row = {"loss": name, "images": batch[0] * batch[1], "peer": table[name][0], **found}
            report["rows"].append(row)
            sides = show(found["ours"]) + show(found["pml"])
            print(f"{name:<18}{row['images']:>6}{sides}  {row['peer']}", flush=True)
    write(args.json, report)


if __name__ == "__main__":
    main()
