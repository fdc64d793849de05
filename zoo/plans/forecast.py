"""Estimates of the time and disk space of a run, from finished runs of the same kind."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from zoo.config.schema import Config, dig, numbers_alike
from zoo.errors import UserError
from zoo.plans.live import clock
from zoo.runs.folder import CHECKPOINT, CONFIG, RESULT, VALIDATION, RunFolder
from zoo.support import yaml
from zoo.support.values import as_setting

# Settings that decide the time of an iteration: only the most important ones, and nearly all.
_ROUGHLY = ("dataset", "images", "model.backbone", "model.freeze", "train.precision")
_CLOSELY = (*_ROUGHLY, "sampler", "loss.name", "miner", "train.chunk_size", "train.workers")
_ON_DISK = ("dataset", "model", "loss.name", "optimizer.name", "optimizer.momentum")
_BYTES = 4  # per number


class Estimate(NamedTuple):
    """What the rest of a run will take.

    Attributes:
        seconds: the time; None if unknown.
        size: bytes of its checkpoint; None if unknown.
        rough: whether the time comes from runs with other batches or another loss.
    """

    seconds: float | None
    size: int | None
    rough: bool = False

    def cells(self) -> tuple[str, str]:
        """Return time and size in words."""
        if self.seconds is None:
            time = "unknown"
        else:
            time = ("about " if self.rough else "") + clock(self.seconds)
        return time, "unknown" if self.size is None else decimal(self.size)


class _Record(NamedTuple):
    """A finished run."""

    config: dict[str, Any]
    device: str
    per_iteration: float | None
    evaluation: float
    size: int | None


class Estimator:
    """Estimates from the finished runs in the output folders of some configs."""

    def __init__(self, configs: Sequence[Config]) -> None:
        folders = {config.output for config in configs}
        self._records = [r for folder in folders for r in _records(Path(folder))]
        self._sizes: dict[str, int | None] = {}

    def of(self, config: Config, reached: int) -> Estimate:
        """Return the estimate for a run that has reached an iteration."""
        seconds, rough = self._seconds(config, reached)
        return Estimate(seconds, self._size(config), rough)

    def _seconds(self, config: Config, reached: int) -> tuple[float | None, bool]:
        device = _device(config)
        iterations = config.train.iterations - reached
        for keys in (_CLOSELY, _ROUGHLY):
            alike = [r for r in self._alike(config, keys) if r.device == device]
            paces = [r.per_iteration for r in alike if r.per_iteration is not None]
            if alike and (paces or not iterations):
                training = iterations * statistics.median(paces) if iterations else 0.0
                evaluation = statistics.median(r.evaluation for r in alike)
                return training + evaluation, keys is _ROUGHLY
        return None, False

    def _size(self, config: Config) -> int | None:
        if not config.train.iterations:
            return 0  # no checkpoint is written
        sizes = [r.size for r in self._alike(config, _ON_DISK) if r.size is not None]
        if sizes:
            return int(statistics.median(sizes))
        key = json.dumps(_part(config.resolved(), _ON_DISK))
        if key not in self._sizes:
            self._sizes[key] = _size_by_parameters(config)
        return self._sizes[key]

    def _alike(self, config: Config, keys: Iterable[str]) -> list[_Record]:
        wanted = _part(config.resolved(), keys)
        return [record for record in self._records if _part(record.config, keys) == wanted]


def extras(config: Config) -> Iterator[str]:
    """Yield lines on the image cache that a run needs, and on its missing files."""
    side = config.images.resize
    if config.images.cache and side is not None:
        yield f"cache: {_cache(config.dataset.name, 3 * side**2)}, written once"
    for key, spec, argument in (
        ("dataset", config.dataset, "root"),
        ("model.backbone", config.model.backbone, "weights"),
    ):
        given = spec.arguments.get(argument)
        public = given in ("imagenet", "pretrained") or str(given).startswith("hf:")
        if isinstance(given, str) and not public and not Path(given).expanduser().exists():
            yield f"missing: {key}.{argument}={as_setting(given)}"


def _cache(dataset: str, image: int) -> str:
    """Return the size of the image cache of a data set, in words."""
    from zoo import registry

    table = getattr(registry.load("datasets", dataset), "table", None)
    if not table:
        return f"{decimal(image)} per image"
    return f"about {decimal(image * sum(count.images for count in table.values()))} for {dataset}"


def _records(folder: Path) -> list[_Record]:
    found = []
    for path in {end.parent for name in (RESULT, VALIDATION) for end in folder.glob(f"*/{name}")}:
        run = RunFolder(path)
        try:
            result = run.result() if run.finished else run.candidate()
        except UserError:  # the leaderboard reports it
            continue
        node = yaml.read(path / CONFIG, CONFIG, [])
        checkpoint = path / CHECKPOINT
        iterations, seconds = result.get("iterations"), result["seconds"]
        found.append(
            _Record(
                node.plain() if node is not None else {},
                _without_threads(str(dig(result, ("hardware", "device"), ""))),
                seconds["training"] / iterations if iterations else None,
                seconds.get("evaluation", 0.0),
                checkpoint.stat().st_size if checkpoint.is_file() else None,
            )
        )
    return found


def _part(config: dict[str, Any], keys: Iterable[str]) -> Any:
    return numbers_alike([dig(config, key.split(".")) for key in keys])


def _device(config: Config) -> str | None:
    """Return the device that a run would use on this machine; None if it is missing."""
    from zoo.support.environment import device_name
    from zoo.training.device import choose_device

    try:
        return _without_threads(device_name(choose_device(config.device)))
    except UserError:
        return None


def _without_threads(device: str) -> str:
    return re.sub(r", \d+ threads$", "", device)


def _size_by_parameters(config: Config) -> int | None:
    """Return the bytes of the network and its optimiser state, without allocating them."""
    import torch

    from zoo import registry
    from zoo.network.embedder import Embedder

    spec, model = config.model.backbone, config.model
    arguments = spec.arguments | ({"weights": None} if "weights" in spec.arguments else {})
    try:
        with torch.device("meta"):
            backbone = registry.assemble("backbones", spec.name, arguments, {})
            embedder = Embedder(
                backbone, model.embedding_size, model.pooling, model.freeze, hidden=model.hidden
            )
    except Exception:  # noqa: BLE001 - a plugin's network that cannot be built on "meta"
        return None
    learning = sum(p.numel() for p in embedder.parameters() if p.requires_grad)
    everything = sum(t.numel() for t in embedder.state_dict().values())
    return int(_BYTES * (everything + _copies(config) * learning))


def _copies(config: Config) -> int:
    """Return how many numbers an optimiser keeps per weight."""
    if config.optimizer is None or config.optimizer.name == "sgd":
        return int(getattr(config.optimizer, "momentum", 0) > 0)
    return 2
