"""Speed of loading from the cache against decoding, and of the loop against one batch in memory.

    python benchmarks/pipeline.py [--images 600] [--rounds 5] [--steps 20] [--json PATH]

The benchmark creates JPEGs of about 500 x 375 pixels, quality 90, as large as photographs. One core
loads batches of 60 in three ways: decoded by Pillow, then resized to 256 x 256, cropped to 227 and
mirrored by torchvision's transforms under a DataLoader; by the zoo without the cache; by the zoo
with the cache, whose file is in the system's memory. CPU seconds are counted.

Then a MobileNetV2 at 112 px trains on all cores: in the zoo's loop, which loads batches of 60 from
the cache, and on one random batch, step by step. Rounds take turns. The time of a checkpoint is
spread over 200 iterations, the default interval.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from _measure import setting, write
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import zoo
from zoo import config
from zoo.base import ImageDataset
from zoo.config.schema import Images, Train
from zoo.data.cache import decoded_once
from zoo.data.pipeline import Batch, training_batches
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.support import environment
from zoo.training import experiment as training_experiment
from zoo.training import loop as training_loop
from zoo.training.step import Trainer

BATCH = 60
PER_CLASS = 10
IMAGES = Images(resize=256, crop=227, mirror=True)
QUIET = Reporter(quiet=True)


# ---- photographs


def draw(rng: np.random.Generator) -> Image.Image:
    """Return a picture with the detail of a photograph: soft background, edges, grain."""
    width, height = (int(side * rng.uniform(0.9, 1.1)) for side in (500, 375))
    picture = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((4, 120), (16, 60), (64, 30), (160, 12)):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        soft = noise.resize((width, height), Image.Resampling.BICUBIC)
        picture += (np.asarray(soft, np.float32) - 128) * (strength / 128)
    image = Image.fromarray(np.clip(picture + 128, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        corner = rng.integers(0, (width, height))
        opposite = corner + rng.integers(10, 150, 2)
        box = tuple(map(int, (*corner, *opposite)))
        pen.ellipse(box, fill=tuple(rng.integers(0, 256, 3).tolist()))
    grain = rng.normal(0, 4, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))


def make_photographs(root: Path, count: int) -> int:
    """Write images in train/ and a few in test/; return their mean size in bytes."""
    rng = np.random.default_rng(0)
    for split, many in (("train", count), ("test", 2 * PER_CLASS)):
        for i in range(many):
            folder = root / split / f"{split}{i // PER_CLASS}"
            folder.mkdir(parents=True, exist_ok=True)
            draw(rng).save(folder / f"{i}.jpg", quality=90)
    return round(mean(path.stat().st_size for path in root.rglob("*.jpg")))


# ---- loading


class Decoded(Dataset[Tensor]):
    """The usual way: Pillow and torchvision's transforms."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.transform = v2.Compose(
            [v2.Resize((256, 256)), v2.RandomCrop(227), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            pixels: Tensor = self.transform(image.convert("RGB"))
        return pixels


class InOrder:
    """A sampler that goes through the images again and again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        while True:
            for start in range(0, self.count - BATCH + 1, BATCH):
                yield list(range(start, start + BATCH))

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the sampler is not resumed."""
        return {}


def load_all(dataset: ImageDataset, times: int) -> int:
    """Load a data set several times over, as training does; return the number of images."""
    batches = len(dataset) // BATCH * times
    sampler: Any = InOrder(len(dataset))
    found = training_batches(dataset, IMAGES, sampler, seed=0, start=0, stop=batches)
    return sum(len(batch.images) for batch in found)


def measure_loading(root: Path) -> dict[str, Any]:
    """Return images per second of one core, for each way."""
    plain: ImageDataset = zoo.build("datasets", "image_folder", root=str(root), split="train")
    (cached,) = decoded_once([plain], 256, workers=None, reporter=QUIET)
    files = sorted((root / "train").rglob("*.jpg"))
    torch.set_num_threads(1)
    decoded = DataLoader(Decoded(files), batch_size=BATCH, drop_last=True, shuffle=True)
    ways: dict[str, Callable[[], int]] = {
        "decoded": lambda: sum(map(len, decoded)),
        "zoo, no cache": lambda: load_all(plain, 1),
        "zoo, cache": lambda: load_all(cached, 20),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(4):
        for name, load in ways.items():
            start = time.process_time()
            count = load()
            if round_:  # the first is a warm-up
                speeds[name].append(count / (time.process_time() - start))
    found = {name: median(values) for name, values in speeds.items()}
    return {
        "images_per_core_second": found,
        "rounds": speeds,
        "cache_to_decoded": found["zoo, cache"] / found["decoded"],
    }


# ---- training


def experiment_on(root: Path, steps: int) -> training_experiment.Experiment:
    """Return the experiment of ice_folder, with random weights and the cache."""
    settings = [
        f"dataset.root={root}",
        "model.backbone.weights=null",
        "images.cache=true",
        f"train={{iterations: {steps}, log_every: 10}}",
    ]
    return training_experiment.assemble(config.load("ice_folder", settings), QUIET)


def timed(trainer: Trainer, total: int) -> list[float]:
    """Return a list in which a trainer will note when its first and last step ended."""
    ends: list[float] = []
    step = trainer.step

    def stamping(batch: Batch) -> None:
        step(batch)
        if trainer.iteration in (1, total):
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    trainer.step = stamping  # type: ignore[method-assign]
    return ends


def train_in_the_loop(experiment: training_experiment.Experiment, folder: Path) -> dict[str, float]:
    """Return seconds of a step, and of the checkpoint after the last one."""
    total = experiment.config.train.iterations
    folder.mkdir()
    training = training_loop.Training(experiment, RunFolder(folder), QUIET, training_loop.Clock())
    ends = timed(training.trainer, total)
    training.run()
    saving = time.perf_counter() - ends[1]
    return {"step": (ends[1] - ends[0]) / (total - 1), "checkpoint": saving}


def train_on_one_batch(experiment: training_experiment.Experiment) -> float:
    """Return seconds of a step on random pixels."""
    total, side = experiment.config.train.iterations, experiment.config.images.crop
    loss = experiment.loss
    assert loss is not None
    trainer = Trainer(
        experiment.config, experiment.embedder, loss, experiment.miner, experiment.precision
    )
    images = torch.randint(256, (BATCH, 3, side, side), dtype=torch.uint8)
    everything = slice(0, BATCH)
    batch = Batch(0, list(range(BATCH)), {}, everything, images, torch.arange(BATCH) // 5)
    ends = timed(trainer, total)
    for _ in range(total):
        trainer.step(batch)
    return (ends[1] - ends[0]) / (total - 1)


def measure_training(root: Path, folder: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Return seconds of a step of both, and the throughput of the loop relative to one batch."""
    torch.set_num_threads(environment.cores())
    experiment = experiment_on(root, steps)
    loops, alone = [], []
    for round_ in range(rounds):
        loops.append(train_in_the_loop(experiment, folder / str(round_)))
        alone.append(train_on_one_batch(experiment))
    every = Train(iterations=steps).checkpoint_every
    step = median(loop["step"] for loop in loops)
    checkpoint = median(loop["checkpoint"] for loop in loops)
    return {
        "device": environment.device_name(experiment.device),
        "seconds_of_a_step": {"loop": step, "one batch": median(alone)},
        "seconds_of_a_checkpoint": checkpoint,
        "rounds": {"loop": loops, "one batch": alone},
        "throughput_to_one_batch": median(alone) / (step + checkpoint / every),
    }


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    environment.keep_freed_memory()
    report: dict[str, Any] = {"batch": BATCH, **setting()}
    print(f"{report['device']}, load {report['load']}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ZOO_CACHE"] = str(folder / "cache")
        root = folder / "photographs"
        report |= {"images": args.images, "bytes_of_a_jpeg": make_photographs(root, args.images)}
        print(f"{args.images} JPEGs of {report['bytes_of_a_jpeg'] / 1e3:.0f} kB on average")
        report["loading"] = loading = measure_loading(root)
        for way, speed in loading["images_per_core_second"].items():
            print(f"{way:<16}{speed:>10.0f} images/s of one core")
        print(f"cache to decoded {loading['cache_to_decoded']:>9.1f} times")
        report["training"] = training = measure_training(root, folder, args.rounds, args.steps)
        for way, seconds in training["seconds_of_a_step"].items():
            print(f"{way:<16}{BATCH / seconds:>10.1f} images/s, {1e3 * seconds:.0f} ms a step")
        print(f"checkpoint      {1e3 * training['seconds_of_a_checkpoint']:>10.0f} ms")
        print(f"loop to one batch {100 * training['throughput_to_one_batch']:>8.1f} %")
    write(args.json, report)


if __name__ == "__main__":
    main()
