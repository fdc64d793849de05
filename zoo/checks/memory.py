"""Peak memory of a computation, counted in bytes so that it is the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(NamedTuple):
    """The largest tensor that was made: its bytes, shape, type and the operation."""

    bytes: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    operation: str = ""

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}, {self.bytes / 1e6:.1f} MB, made by {self.operation}"


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors made inside ``with PeakMemory() as memory:``.

    Every result of an operation is counted once, until its storage is freed.

    Attributes:
        peak: the most bytes that were alive at once.
        largest: the largest tensor.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self.largest = Largest()
        self._live: dict[int, int] = {}
        self._now = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf, str(func))
        return result

    def _count(self, tensor: torch.Tensor, operation: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._live:
            return
        self._live[key] = size
        self._now += size
        self.peak = max(self.peak, self._now)
        if size > self.largest.bytes:
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.largest = Largest(size, tuple(tensor.shape), dtype, operation)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self._now -= self._live.pop(key)
