"""The environment of a result: versions, hardware, the state of the user's repository."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from zoo.support.text import counted

_PACKAGES = ("metric-zoo", "torch", "torchvision", "pytorch-metric-learning", "numpy", "pillow")

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """Return the device, the processor and the number of threads."""
    return {
        "device": device_name(device),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """Return the name that a person would give a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    return f"{cpu_name()}, {counted(torch.get_num_threads(), 'thread')}"


def cpu_name() -> str:
    """Return the processor's name, as far as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int | None:
    """Return how many bytes of memory a process may use; None if the system does not say."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    allowed = limit.read_text(encoding="utf-8").strip() if limit.is_file() else ""
    return min(pages * size, int(allowed)) if allowed.isdecimal() else pages * size


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, for the whole process; do nothing elsewhere.

    By default it returns every large block to the system, which clears it page by page when the
    next step allocates it again: a good part of the time of training on a CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def git_state() -> dict[str, Any] | None:
    """Return the commit of the current repository and whether it is clean; None outside of one."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "clean": _git("status", "--porcelain") == ""}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
