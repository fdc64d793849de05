"""One GPU: training against the bare step, Recall@K against FAISS, and hours for Table 3.

    python benchmarks/gpu.py                        # writes results/benchmarks/gpu-<card>.json
    python benchmarks/gpu.py --device cpu --small   # rehearses itself; writes only to --json PATH

Training: a BN-Inception and a ResNet-50 with ICE, in batches of the configs for SOP (90 x 2) at 224
px, from a made-up data set on disk, decoded once as in these configs. Compared are the zoo's loop
over its pipeline; its step on one batch that is on the device; a step in plain torch with the same
network and loss; and one without a loss. Nothing waits for the device between the steps of a round.
The share of time in which the loop waits for data is that of the host: a GPU may be working.

Recall@{1, 10, 100, 1000}: 60,502 x 512, as many as SOP has for the test, and a million x 128.
Compared are the zoo, FAISS's flat search for the 1,001 nearest on the GPU (if it is installed with
GPUs), and the bare product, which computes all tiles of the similarity matrix in full float32 and
uses none of them. Each is repeated until 20 seconds have passed, at most five times.

Table 3: for each config, its own step is measured, with its batch, loss and levels. The hours of a
run are the iterations times that and times what the loop adds for ICE, plus what the sampler, the
embedding of the test images and Recall@K take. The images are assumed to be decoded already.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _table3
import numpy as np
import torch
from _measure import setting, slug, write
from _steps import median, plain_step, random_batch, rounds_of, wait
from _table3 import Measured, Size
from PIL import Image
from torch import Tensor

from zoo import config
from zoo.data.pipeline import training_batches
from zoo.errors import UserError
from zoo.evaluate import recall_at_k
from zoo.evaluation import faiss as zoo_faiss
from zoo.evaluation.items import TILE_SIDE
from zoo.progress import Reporter
from zoo.support import environment
from zoo.support.precision import full_float32
from zoo.training.device import choose_device
from zoo.training.experiment import Experiment, assemble
from zoo.training.step import Trainer

KS = (1, 10, 100, 1000)
BACKBONES = ("bn_inception", "torchvision.resnet50")
RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
QUIET = Reporter(quiet=True)


# ---- training


def make_images(root: Path, classes: int) -> None:
    """Write four JPEGs of 256 x 256 soft pixels for each class, and a test split."""
    rng = np.random.default_rng(0)
    for split, count in (("train", classes), ("test", 2)):
        for i in range(4 * count):
            folder = root / split / f"{split}{i // 4}"
            folder.mkdir(parents=True, exist_ok=True)
            cells = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
            cells.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")


def experiment_on(root: Path, backbone: str, device: str, small: bool) -> Experiment:
    """Return the experiment of ice_sop with another network and made-up images."""
    settings = [
        f"dataset={{name: image_folder, root: {root}}}",
        f"model.backbone={{name: {backbone}, weights: null}}",
        f"device={device}",
        "optimizer.lr=1e-12",  # the weights are random: they shall stay finite
    ]
    if small:
        settings += ["images.resize=36", "images.crop=32", "sampler.classes=4"]
    else:
        settings += ["images.crop=224"]
    return assemble(config.load("ice_sop", settings), QUIET)


def loop(experiment: Experiment, trainer: Trainer, steps: int, warm_up: int) -> tuple[float, float]:
    """Return the seconds of a step of the loop, and the share in which it waits for data."""
    assert experiment.train is not None
    assert experiment.sampler is not None
    batches = training_batches(
        experiment.train,
        experiment.config.images,
        experiment.sampler,
        seed=0,
        start=0,
        stop=warm_up + steps,
        workers=experiment.workers,
        device=experiment.device,
    )
    for _ in range(warm_up):
        trainer.step(next(batches))
    wait(experiment.device)
    start, waited = time.perf_counter(), 0.0
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        trainer.step(batch)
    trainer.meter.read()  # as the loop does when it logs
    wait(experiment.device)
    took = time.perf_counter() - start
    return took / steps, waited / took


def train(root: Path, backbone: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the training of one network in all ways."""
    experiment = experiment_on(root, backbone, args.device, args.small)
    device, embedder, loss = experiment.device, experiment.embedder, experiment.loss
    assert loss is not None
    side = experiment.config.images.crop or 0
    labels = torch.arange(getattr(experiment.sampler, "batch_size", 0)) // 2
    batch = random_batch(labels, side, device)
    trainer = Trainer(experiment.config, embedder, loss, None, experiment.precision)
    steps, rounds, warm_up = (2, 1, 1) if args.small else (30, 3, 10)
    tasks: dict[str, Callable[[], Any]] = {
        "plain torch, no loss": plain_step(embedder, batch, experiment.precision, None),
        "plain torch": plain_step(embedder, batch, experiment.precision, loss),
        "zoo, one batch": lambda: trainer.step(batch),
    }
    seconds = rounds_of(tasks, device, steps, rounds, warm_up)
    loops = [loop(experiment, trainer, steps, warm_up) for _ in range(rounds)]
    seconds["zoo, the loop"] = [took for took, _ in loops]
    middle = {name: median(values) for name, values in seconds.items()}
    return {
        "batch": len(labels),
        "side": side,
        "precision": experiment.precision,
        "workers": experiment.workers,
        "seconds_of_a_step": seconds,
        "images_per_second": {name: len(labels) / value for name, value in middle.items()},
        "throughput_to_plain_torch": middle["plain torch"] / middle["zoo, the loop"],
        "loop_to_one_batch": middle["zoo, the loop"] / middle["zoo, one batch"],
        "share_waiting_for_data": median([share for _, share in loops]),
    }


# ---- Recall@K


def clustered(items: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return items and labels in classes of 5, like a trained embedding."""
    generator = torch.Generator(device).manual_seed(0)
    spectrum = torch.arange(1, dim + 1, device=device).pow(-0.5)
    labels = torch.arange(items, device=device) // 5
    centres = torch.randn(items // 5 + 1, dim, generator=generator, device=device)
    noise = torch.randn(items, dim, generator=generator, device=device)
    return (centres[labels] + 1.34 * noise) * spectrum, labels


def bare_product(unit: Tensor) -> None:
    """Compute all tiles of the similarity matrix, without using them."""
    side = TILE_SIDE[unit.device.type]
    tile = unit.new_empty(side, side)
    with full_float32(unit.device):
        for rows in unit.split(side):
            for cols in unit.split(side):
                torch.mm(rows, cols.T, out=tile[: len(rows), : len(cols)])


def faiss_search(unit: Tensor, k: int) -> None:
    """Find the ``k`` nearest of every item with FAISS's exact index, on the device."""
    index = zoo_faiss.module("the benchmark").IndexFlatIP(unit.shape[1])
    index = zoo_faiss.on_gpu(index, unit.device) or index
    numbers = unit.cpu().numpy()
    index.add(numbers)
    index.search(numbers, min(k, len(numbers)))


def has_faiss(device: torch.device) -> bool:
    """Whether FAISS is installed, and for a GPU if the device is one."""
    try:
        faiss = zoo_faiss.module("the benchmark")
        return device.type == "cpu" or zoo_faiss.on_gpu(faiss.IndexFlatIP(4), device) is not None
    except ValueError:
        return False


def repeated(task: Callable[[], Any], device: torch.device, most: int) -> list[float]:
    """Return the seconds of each repetition: for 20 seconds, and at most some times."""
    found: list[float] = []
    while len(found) < most and sum(found) < 20:
        wait(device)
        start = time.perf_counter()
        task()
        wait(device)
        found.append(time.perf_counter() - start)
    return found


def recall(items: int, dim: int, device: torch.device, most: int) -> dict[str, Any]:
    """Time every contender on one number of items; all were called before, on fewer."""
    vectors, labels = clustered(items, dim, device)
    unit = torch.nn.functional.normalize(vectors, dim=1)
    tasks: dict[str, Callable[[], Any]] = {
        "zoo": lambda: recall_at_k(vectors, labels, KS),
        "bare product": lambda: bare_product(unit),
    }
    if has_faiss(device):
        tasks["faiss k=1001"] = lambda: faiss_search(unit, 1001)
    seconds = {name: repeated(task, device, most) for name, task in tasks.items()}
    middle = {name: median(values) for name, values in seconds.items()}
    return {
        "items": items,
        "dim": dim,
        "recall": recall_at_k(vectors, labels, KS) if items < 100_000 else None,
        "seconds": seconds,
        "median_seconds": middle,
        "to_bare_product": {name: s / middle["bare product"] for name, s in middle.items()},
    }


# ---- all


def measure(args: argparse.Namespace, device: torch.device, root: Path) -> Iterator[dict[str, Any]]:
    """Measure everything and print it; yield the report after each part."""
    start = time.perf_counter()
    report: dict[str, Any] = {**setting(), "training": {}, "recall": []}
    print(f"{environment.device_name(device)}, load {report['load']}")
    make_images(root, 8 if args.small else 100)
    for backbone in BACKBONES:
        report["training"][backbone] = found = train(root, backbone, args)
        print(f"\n{backbone}, {found['batch']} images of {found['side']} px, {found['precision']}")
        for name, speed in found["images_per_second"].items():
            print(f"  {name:<22}{speed:>10.1f} images/s")
        print(f"  the loop to plain torch {100 * found['throughput_to_plain_torch']:>7.1f} %")
        print(f"  waiting for data {100 * found['share_waiting_for_data']:>14.1f} %")
        yield report
    sizes = ((500, 16), (1000, 8)) if args.small else ((60_502, 512), (1_000_000, 128))
    recall(500, 16, device, 1)  # libraries start
    for items, dim in sizes:
        found = recall(items, dim, device, 1 if args.small else 5)
        report["recall"].append(found)
        print(f"\nRecall@K, {items:,} x {dim}")
        for name, seconds in found["median_seconds"].items():
            print(f"  {name:<22}{seconds:>10.3f} s {found['to_bare_product'][name]:>8.2f} x bare")
        yield report
    report["table3"] = table3(args, device, report)
    report["minutes"] = (time.perf_counter() - start) / 60
    yield report


def table3(
    args: argparse.Namespace, device: torch.device, report: dict[str, Any]
) -> dict[str, Any]:
    """Return the hours of each config of Table 3, and print them."""
    of_sop = report["recall"][0]
    known = Measured(
        max(1.0, report["training"]["bn_inception"]["loop_to_one_batch"]),
        of_sop["median_seconds"]["zoo"],
        of_sop["items"],
        of_sop["dim"],
    )
    size = Size((), 5, 3, 256)
    if args.small:
        size = Size(("images.resize=36", "images.crop=32"), 1, 0, 4)
    names = _table3.rows()
    if args.small:
        names = ["pretrained_cub", "ice_lmh_cub", "npair_mc_sop"]
    print(f"\n{'Table 3':<26}{'hours':>8}{'step, ms':>10}")
    found = {}
    for name in names:
        found[name] = one = _table3.hours(name, known, size, device)
        print(f"{name:<26}{one['hours']:>8.2f}{1e3 * one['seconds_of_a_step']:>10.1f}", flush=True)
    print(f"{'all':<26}{sum(one['hours'] for one in found.values()):>8.2f}")
    return found


def main() -> None:
    """Measure, print, and write the report if it is that of a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal: small, writes nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="instead of results/benchmarks")
    args = parser.parse_args()
    try:
        device = choose_device(args.device)
    except UserError as error:
        parser.error(str(error))
    if device.type != "cuda" and not args.small:
        parser.error("without a GPU, give --device cpu --small, which rehearses the benchmark")
    path = args.json
    if path is None and not args.small:
        path = RESULTS / f"gpu-{slug(environment.device_name(device))}.json"
    with tempfile.TemporaryDirectory() as name:
        os.environ["ZOO_CACHE"] = str(Path(name) / "cache")
        for report in measure(args, device, Path(name) / "images"):
            write(path, report)  # after each part, as a later one may fail
    print(f"\n{report['minutes']:.1f} minutes" + (f"; written: {path}" if path else ""))


if __name__ == "__main__":
    main()
