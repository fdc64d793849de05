"""The device and the precision of a run."""

from __future__ import annotations

import os
import re

import torch

from zoo.config.schema import DEVICE
from zoo.errors import UserError
from zoo.parallel.ranks import Ranks


def choose_device(name: str, ranks: Ranks | None = None) -> torch.device:
    """Return the device that a config names; auto is CUDA if available, else the CPU.

    Of several processes on a machine, each gets a GPU of its own.

    Raises a UserError if there is no such device, or if several processes cannot have it.
    """
    if not re.fullmatch(DEVICE, name):
        raise UserError(f"device {name!r}: give auto, cpu, mps, cuda, or cuda:0 and so on")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if ranks and not ranks.alone and name != "cpu":
        name = _own_device(name)
    if name.startswith("cuda"):
        index = int(name.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise UserError(f"device={name}: this machine has {torch.cuda.device_count()} GPUs")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps: not available on this machine")
    return torch.device(name)


def _own_device(name: str) -> str:
    """Return the device of this one of several processes."""
    check_shared(name)
    here, count = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if here > count:
        raise UserError(
            f"{here} processes need a GPU each, and this machine has {count}; start "
            f"{max(1, count)}, or set device=cpu"
        )
    name = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(name)
    return name


def check_shared(name: str) -> None:
    """Raise a UserError if several processes cannot have what a config or a command names."""
    if name not in ("auto", "cuda", "cpu"):
        raise UserError(f"device={name}: several processes need device=cuda, a GPU each, or cpu")


def choose_precision(name: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16; auto is bf16 if the hardware is faster with it."""
    if name != "auto":
        if name != "fp32" and not torch.amp.is_autocast_available(device.type):
            raise UserError(
                f"train.precision={name}: PyTorch {torch.__version__} has only fp32 on "
                f"{device.type}; set train.precision=fp32, or install a newer one"
            )
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return "bf16" if device.type == "cpu" and has_tiles() else "fp32"
