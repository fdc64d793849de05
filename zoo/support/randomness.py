"""The state of all global random number generators: reading, setting, preserving it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Leave every global generator as it was."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def random_state(device: torch.device | None = None) -> dict[str, Any]:
    """Return the state of every global generator, in types that a safe loader accepts.

    Of the generators of GPUs, only that of a device, or else all. The state of one can be set on
    another GPU: a run may go on there, and each process of a run has a GPU of its own.
    """
    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(gpu) for gpu in _gpus(device)],
        "python": [version, list(numbers), gauss],
        "numpy": numpy_state,
    }


def set_random_state(state: dict[str, Any], device: torch.device | None = None) -> None:
    """Set every global generator to a state that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    for gpu, of_gpu in zip(_gpus(device), state["cuda"], strict=False):
        torch.cuda.set_rng_state(of_gpu, gpu)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    numpy_state = {**state["numpy"], "state": dict(state["numpy"]["state"])}
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy_state)


def _gpus(device: torch.device | None) -> list[torch.device]:
    """Return a device if it is a GPU, or without one all GPUs."""
    if device is not None:
        return [device] if device.type == "cuda" else []
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
