"""Functions shared by the benchmarks: timing contenders in turn, recording the machine."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zoo.support import environment


def time_in_turn(
    tasks: dict[str, Callable[[], Any]], repeats: int, at_least: float = 0.0
) -> dict[str, list[float]]:
    """Return the seconds of each task in each round, after a warm-up round that is not counted.

    The tasks take turns, so that a busy machine slows all of them alike. A task that takes less
    than ``at_least`` seconds is run several times per round, and the mean is taken.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    times = dict.fromkeys(tasks, 1)
    for round_ in range(repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            for _ in range(times[name]):
                task()
            _finish()
            took = (time.perf_counter() - start) / times[name]
            if round_:
                seconds[name].append(took)
            else:
                times[name] = max(1, round(at_least / took))
    return seconds


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each task."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def setting() -> dict[str, Any]:
    """Return hardware, versions, and the load of the machine."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        **environment.hardware(device),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "versions": environment.versions(),
    }


def write(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report as JSON, if a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def slug(card: str) -> str:
    """Return a card's name as part of a file's: "NVIDIA H200 MIG 1g.18gb" is h200-mig-1g-18gb."""
    words = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    return words.removeprefix("nvidia-")


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
