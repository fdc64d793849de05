"""Constants of docs/scale.md that can be measured without a GPU.

    python benchmarks/scale.py [--json PATH]

For the backbones of the configs: parameters, operations and bytes that one image keeps for the
backward pass, in float32. For Recall@K: bytes that an image takes while embeddings are scaled and
sorted. For an index: bytes that the name of an image takes in memory and on disk.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from _measure import setting, write
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import zoo
from zoo.checks.memory import PeakMemory
from zoo.evaluation.shards import Shards
from zoo.network.embedder import Embedder

BACKBONES = {"bn_inception": 227, "torchvision.resnet50": 224}  # side of the crop
DIM, IMAGES = 512, 2


def network(name: str) -> nn.Module:
    """Return a network as a run has it, with random weights."""
    return Embedder(zoo.build("backbones", name, weights=None), DIM)


def kept_bytes(model: nn.Module, images: Tensor) -> int:
    """Return the bytes that autograd keeps, apart from the parameters; shared ones count once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images).sum()
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def measured(name: str, side: int) -> dict[str, Any]:
    """Return what one image costs in a network, forwards."""
    model = network(name).train()
    images = torch.randint(256, (IMAGES, 3, side, side), dtype=torch.uint8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return {
        "side": side,
        "parameters": sum(p.numel() for p in model.parameters()),
        "forward_flop": counter.get_total_flops() / IMAGES,
        "kept_bytes": kept_bytes(model, images) / IMAGES,
    }


def evaluated(count: int = 200_000) -> dict[str, float]:
    """Return the bytes that Recall@K takes for each number of an embedding, and for each label."""
    labels, peaks = torch.arange(count) // 20, {}
    for dim in (64, 128):
        embeddings = torch.randn(count, dim)
        with PeakMemory() as memory:
            Shards(embeddings, labels)
        peaks[dim] = memory.peak / count
    number = (peaks[128] - peaks[64]) / 64
    return {"number": number, "label": peaks[64] - 64 * number}


def names(count: int = 1_000_000) -> dict[str, float]:
    """Return the bytes per name: text in a list, the place by name in a dict, and JSON."""
    listed = [f"{number // 1000:06}/{number:010}.jpg" for number in range(count)]
    text = sys.getsizeof(listed) + sum(map(sys.getsizeof, listed))
    places = {name: place for place, name in enumerate(listed)}
    numbers = sum(map(sys.getsizeof, places.values()))
    return {
        "characters": len(listed[0]),
        "memory": (text + sys.getsizeof(places) + numbers) / count,
        "disk": len(json.dumps(listed, indent=1)) / count,
    }


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH")
    given = parser.parse_args()
    torch.manual_seed(0)
    report = {
        **setting(),
        "dim": DIM,
        "networks": {name: measured(name, side) for name, side in BACKBONES.items()},
        "evaluation_bytes": evaluated(),
        "name_bytes": names(),
    }
    for name, found in report["networks"].items():
        print(
            f"{name}: {found['parameters'] / 1e6:.1f} M parameters; an image: "
            f"{found['forward_flop'] / 1e9:.2f} GFLOP, {found['kept_bytes'] / 1e6:.0f} MB"
        )
    print(f"Recall@K, bytes: {report['evaluation_bytes']}\na name, bytes: {report['name_bytes']}")
    write(given.json, report)


if __name__ == "__main__":
    main()
