"""Runs on this machine: each a process, on a device of its own."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.plans.engines.base import Engine, Handle, Need, Send, Task
from zoo.plans.engines.child import Child
from zoo.plans.engines.slots import DeviceSlot, DeviceSlots
from zoo.support.checked import Count, checked


class Local(Engine):
    """Runs on this machine, one on each GPU, or one on the CPU.

    Runs at the same time share the threads of the CPU; a single one has all of them. How many
    threads a run has depends on the plan and the machine, not on how much is left to do, so that a
    run that starts after a stop gives the same result.

    Args:
        jobs: runs at a time; by default one on each device.
    """

    name = "local"

    @checked
    def __init__(self, jobs: Count | None = None) -> None:
        super().__init__(jobs)
        self._slots = DeviceSlots(0, jobs)
        self._threads: int | None = None

    def open(self, needs: Sequence[Need]) -> None:
        """Look for GPUs; divide the threads."""
        self._slots = DeviceSlots(_gpus_for(needs), self.jobs)
        self._threads = _threads(_at_a_time(self._slots, needs))

    def at_a_time(self, needs: Sequence[Need]) -> int:
        """Return how many of these runs can be carried out at the same time."""
        return _at_a_time(DeviceSlots(_gpus_for(needs), self.jobs), needs)

    def has_room(self, need: Need) -> bool:
        """Return whether a device is free."""
        return self._slots.has_room(*need)

    def start(self, task: Task, send: Send) -> Handle:
        """Start the process of a run."""
        slot = self._slots.acquire(*task.need)
        assert slot is not None, "has_room was not asked"
        return _OnDevice(self._slots, slot, task, send, self._threads)


class _OnDevice(Child):
    """A process that has devices, and makes them free at its end."""

    def __init__(
        self, slots: DeviceSlots, slot: DeviceSlot, task: Task, send: Send, threads: int | None
    ) -> None:
        self._slots, self._slot = slots, slot
        super().__init__(task, send, threads, slot.environment)

    def close(self) -> str:
        self._slots.release(self._slot)
        return super().close()


def _at_a_time(slots: DeviceSlots, needs: Sequence[Need]) -> int:
    most = max(need.processes for need in needs)
    return slots.at_a_time([need.device for need in needs], most)


def _gpus_for(needs: Sequence[Need]) -> int:
    """Return the number of GPUs if any run may take one; 0 if all runs name their device."""
    if not any(need.wants_gpu for need in needs):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _threads(together: int) -> int | None:
    """Return the threads per process; None for a single process, which may use all."""
    if together == 1:
        return None
    import torch

    return max(1, torch.get_num_threads() // together)
