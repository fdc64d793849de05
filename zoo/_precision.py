"""Float32 that is float32: no autocast, no TF32, no bfloat16, whatever the caller has allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Keep TF32, bfloat16 and autocast out of float32 products; the user's settings come back."""
    backends = (torch.backends.cuda, torch.backends.mkldnn)
    # PyTorch has an older switch, and a newer one per backend that overrides it.
    newer = [b.matmul for b in backends if hasattr(getattr(b, "matmul", None), "fp32_precision")]
    before = [switch.fp32_precision for switch in newer]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # only the newer one was used, and reading the older is an error
        older = "highest"
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(older)
        for switch, precision in zip(newer, before, strict=True):
            switch.fp32_precision = precision


def upcast(x: Tensor) -> Tensor:
    """Return x in float32, or as it is when it has at least that precision already."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
