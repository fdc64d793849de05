"""Reading safetensors files: a header of JSON, followed by the bytes of each tensor.

The format is small, so this reader needs neither the package of that name nor a certain version of
torch.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from zoo.support.files import open_regular

_MOST_HEADER = 100_000_000  # bytes, as in the package
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins as one: the length of a header, and the header."""
    with open_regular(path) as file:
        return file.read(9)[8:] == b"{"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or incomplete; says how.
    """
    with open_regular(path) as file:
        header = _read_header(file)
        start, end = file.tell(), os.fstat(file.fileno()).st_size
        places = {name: _place(name, entry) for name, entry in header.items()}
        if sum(stop - begin for begin, stop in places.values()) > end - start:
            raise ValueError("it claims more bytes than it has")
        found = {}
        for name, (begin, stop) in places.items():
            file.seek(start + begin)
            found[name] = _tensor(file, stop - begin, header[name])
    return found


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the entry of each tensor in the header, without the file's free-form metadata."""
    length = int.from_bytes(file.read(8), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"its header has {length:,} bytes")
    text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its header is damaged") from None
    if not isinstance(header, dict):
        raise ValueError("its header is damaged")
    header.pop("__metadata__", None)
    return header


def _place(name: str, entry: Any) -> tuple[int, int]:
    """Return where the bytes of a tensor begin and end, checked against its type and shape."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"its header is damaged at {name!r}") from None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"{name!r} has the type {kind!r}, which is not supported for weights")
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise ValueError(f"its header is damaged at {name!r}")
    if math.prod(shape) * _TYPES[kind].itemsize != end - begin:
        raise ValueError(f"{name!r} is not as large as its shape")
    return begin, end


def _tensor(file: BinaryIO, size: int, entry: dict[str, Any]) -> Tensor:
    dtype, shape = _TYPES[entry["dtype"]], entry["shape"]
    if not size:
        return torch.empty(shape, dtype=dtype)
    data = bytearray(size)
    if file.readinto(data) != size:  # type: ignore[attr-defined]
        raise ValueError("it has been cut short")
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
