"""What the tests of tests/gpu need: devices, and a block in which the host waits for none."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU, META, GPU = map(torch.device, ("cpu", "meta", "cuda"))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
_gpu = pytest.param(GPU, marks=needs_gpu, id="cuda")

on_each = pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu"), _gpu])
"""The same test on the CPU, where it is a rehearsal, and on a GPU."""

without_numbers = pytest.mark.parametrize("device", [pytest.param(META, id="meta"), _gpu])
"""The same test on tensors without numbers, as a rehearsal: code that reads a number fails."""


class HostWaits(Exception):
    """The host would wait for the device."""


class _NoCopies(TorchFunctionMode):
    """Fails where a tensor is made of Python's numbers and copied to the device."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        found = function(*arguments, **(keywords or {}))
        if function in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            made = not isinstance(arguments[-1], torch.Tensor)
            if made and found.device.type != "cpu":
                raise HostWaits(f"{function.__name__} makes the host wait")
        return found


class _NoWaits(TorchDispatchMode):
    """Fails where the meta device alone does not: at copies, and where a status is looked at."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        found = function(*arguments, **keywords)
        name = function.__name__
        waits = name.startswith(("_linalg_svd", "_linalg_eigh", "linalg_inv_ex"))
        if name == "_to_copy.default":
            waits = found.device != arguments[0].device and not keywords.get("non_blocking")
        elif name == "copy_.default":
            waits = arguments[0].device != arguments[1].device and arguments[2:3] != (True,)
        if waits:
            raise HostWaits(f"{name} makes the host wait")
        return found


@contextmanager
def no_waiting(device):
    """Raise an error where the host waits for the device; on meta, where it reads a number."""
    if device == META:
        with _NoCopies(), _NoWaits():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
