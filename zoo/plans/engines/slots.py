"""The devices of this machine, and which runs have them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from zoo.plans.engines.base import GPU


class DeviceSlot(NamedTuple):
    """Where a run executes: its devices, and the environment variables that select them."""

    devices: tuple[str, ...]
    environment: dict[str, str]


class DeviceSlots:
    """Assigns devices to runs.

    Args:
        gpus: number of GPUs present.
        limit: runs at a time; by default one on each device.
    """

    def __init__(self, gpus: int, limit: int | None = None) -> None:
        self._gpus = [f"cuda:{i}" for i in range(gpus)]
        self._limit = limit
        self._busy: Counter[str] = Counter()
        self._running = 0
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._visible = visible.split(",") if visible else list(map(str, range(gpus)))

    def at_a_time(self, wanted: Sequence[str], processes: int = 1) -> int:
        """Return how many runs that want these devices can run at the same time.

        ``processes`` is the largest number of processes of a run.
        """
        devices = {d for w in wanted for d in self._candidates(w)}
        return min(len(wanted), self._limit or max(1, len(devices) // processes))

    def has_room(self, wanted: str, processes: int = 1) -> bool:
        """Return whether devices are free for such a run."""
        return bool(self._free(wanted, processes))

    def acquire(self, wanted: str, processes: int = 1) -> DeviceSlot | None:
        """Return free devices for a run whose config has ``device: wanted``, or None.

        Each of its processes gets a GPU of its own, as far as there are GPUs.
        """
        devices = self._free(wanted, processes)
        if not devices:
            return None
        self._running += 1
        self._busy.update(devices)
        # A process that sees only its GPUs cannot allocate memory on another one by mistake.
        chosen = wanted in GPU and devices[0] in self._gpus
        visible = ",".join(self._visible[int(device[5:])] for device in devices if chosen)
        return DeviceSlot(tuple(devices), {"CUDA_VISIBLE_DEVICES": visible} if chosen else {})

    def release(self, slot: DeviceSlot) -> None:
        """Make the devices free again."""
        self._running -= 1
        self._busy.subtract(slot.devices)

    def _free(self, wanted: str, processes: int) -> list[str]:
        """Return the least busy devices; none if they are taken."""
        if self._limit and self._running >= self._limit:
            return []
        candidates = self._candidates(wanted)
        devices = sorted(candidates, key=lambda d: self._busy[d])[:processes]
        return devices if self._busy[devices[-1]] < self._share(len(candidates)) else []

    def _candidates(self, wanted: str) -> list[str]:
        return self._gpus if wanted in GPU and self._gpus else [wanted]

    def _share(self, devices: int) -> int:
        return -(-self._limit // devices) if self._limit else 1
