"""Float32 that is float32: no autocast, no TF32, whatever the caller has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def full_float32(like: Tensor) -> Iterator[None]:
    """Switch off autocast and, on CUDA, TF32 matrix products; both are as before afterwards."""
    with torch.autocast(like.device.type, enabled=False):
        if not like.is_cuda:
            yield
            return
        matmul = torch.backends.cuda.matmul
        # From 2.9 on torch refuses to read the old flag once the new one has been set.
        flag = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"
        before = getattr(matmul, flag)
        setattr(matmul, flag, "ieee" if flag == "fp32_precision" else False)
        try:
            yield
        finally:
            setattr(matmul, flag, before)


def upcast(x: Tensor) -> Tensor:
    """Return x in float32, or as it is when it has at least that precision already."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
