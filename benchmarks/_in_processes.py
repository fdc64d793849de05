"""What each process does in benchmarks/processes.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_metric_learning.losses as pml
import torch
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import zoo
from zoo.checks.memory import PeakMemory
from zoo.evaluation.recall import ranks as ranks_of
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.registry.calling import sum_of_parts


def timed(ranks: Ranks, task: Callable[[], Any], repeats: int) -> list[float]:
    """Return the seconds of each repetition, of the slowest process, after a warm-up."""
    found = []
    for _ in range(repeats + 1):
        ranks.wait()
        start = time.perf_counter()
        task()
        mine = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        found.append(float(ranks.gather(mine, [1] * ranks.size).max()))
    return found[1:]


def reset_peak() -> None:
    """Let the system count the peak memory of this process from here; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Return the peak memory of this process in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def recall(items: int, dim: int, repeats: int, ranks: Ranks, reporter: Reporter) -> dict[str, Any]:
    """Return the ranks r(q), the seconds, and the memory that each process took for them."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(items) // 20
    centres = torch.randn(items // 20 + 1, dim, generator=generator)
    share = ranks.share(items)
    mine = centres[labels[share]] + 1.3 * torch.randn(items, dim, generator=generator)[share]
    ranks_of(mine[:100], labels[share][:100])  # what is allocated once
    reset_peak()
    before = peak()
    found: list[Tensor] = []

    def measure() -> None:
        found[:] = [ranks_of(mine, labels[share], group=ranks.group)]

    seconds = timed(ranks, measure, repeats)
    taken = peak() - before
    return {"ranks": found[0], "seconds": seconds, "kilobytes": taken}


def loss(
    name: str, images: int, dim: int, repeats: int, ranks: Ranks, reporter: Reporter
) -> dict[str, Any]:
    """Return the value of a loss, its seconds with backward, and the peak memory of a process."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, dim, generator=generator)
    labels = torch.arange(images) // 4
    one = zoo.build("losses", name)
    mine, counts = ranks.share(images), ranks.counts(images)
    values: list[float] = []

    def step() -> None:
        own = x[mine].clone().requires_grad_()
        everything = ranks.gather_parts(own, counts)
        totals, numbers = one.part(everything, labels, mine)
        numbers = numbers.clone()
        ranks.sum([numbers])
        value = sum_of_parts(totals, numbers)
        value.backward()
        total = value.detach().clone()
        ranks.sum([total])
        values.append(float(total))

    seconds = timed(ranks, step, repeats)
    with PeakMemory() as memory:
        step()
    return {"value": values[-1], "seconds": seconds, "peak": memory.peak}


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "ProxyAnchorLoss": lambda: pml.ProxyAnchorLoss(8, 6),
    "ArcFaceLoss": lambda: pml.ArcFaceLoss(8, 6),
}


def gradients(ranks: Ranks, reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return norms of the gradient of PML's losses: by PML's recipe, and by the zoo's."""
    return {name: {**_by_pml(name, ranks), **_by_zoo(name, ranks)} for name in LOSSES}


def _batch() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Linear(10, 6)
    return network, torch.randn(16, 10), torch.arange(16) % 8


def _norms(how: str, network: nn.Module, own: Sequence[nn.Parameter]) -> dict[str, float]:
    def norm(parameters: Sequence[nn.Parameter]) -> float:
        return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())

    return {f"{how}: network": norm([*network.parameters()]), f"{how}: loss": norm(own)}


def _by_pml(name: str, ranks: Ranks) -> dict[str, float]:
    """Follow PML's page on distributed training: both in DDP, the loss in its wrapper."""
    network, images, labels = _batch()
    one = LOSSES[name]()
    mine = ranks.share(len(labels))
    if ranks.alone:
        one(network(images), labels).backward()
    else:
        wrapped = DistributedLossWrapper(one)
        learner = DistributedDataParallel(network)
        criterion = DistributedDataParallel(wrapped)
        criterion(learner(images[mine]), labels[mine]).backward()
    return _norms("PML", network, [*one.parameters()])


def _by_zoo(name: str, ranks: Ranks) -> dict[str, float]:
    network, images, labels = _batch()
    one = LOSSES[name]()
    embeddings = ranks.gather(network(images[ranks.share(16)]), ranks.counts(16))
    one(embeddings, labels).backward()
    for parameter in [] if ranks.first else one.parameters():
        parameter.grad.zero_()
    both = [*network.parameters(), *one.parameters()]
    ranks.sum([p.grad for p in both])
    return _norms("zoo", network, [*one.parameters()])
