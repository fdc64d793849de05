"""Full float32: no autocast, TF32 or bfloat16, even if the caller has switched them on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Keep TF32, bfloat16 and autocast out of float32 products, then restore the settings."""
    backends = (torch.backends.cuda, torch.backends.mkldnn)
    # PyTorch has an older switch, and a newer one per backend that overrides it.
    newer = [b.matmul for b in backends if hasattr(getattr(b, "matmul", None), "fp32_precision")]
    before = [switch.fp32_precision for switch in newer]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # only the newer one was used, which makes reading the older an error
        older = "highest"
    torch.set_float32_matmul_precision("highest")
    try:
        with without_autocast(device.type):
            yield
    finally:
        torch.set_float32_matmul_precision(older)
        for switch, precision in zip(newer, before, strict=True):
            switch.fp32_precision = precision


def without_autocast(kind: str) -> torch.autocast | nullcontext[None]:
    """Return a context that switches off autocast on a kind of device, if it is on."""
    return torch.autocast(kind, enabled=False) if _is_on(kind) else nullcontext()


def _is_on(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except RuntimeError:  # this kind has no autocast: mps before torch 2.5
        return False


def upcast(x: Tensor) -> Tensor:
    """Return x in float32, or unchanged if it has at least that precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
