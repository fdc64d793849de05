"""The image cache: the resized images of a split, decoded once into a file that batches use.

The file is a plain ``.npy``, uint8 (N, channels, side, side), in ``images`` of the cache folder.
Its name holds a digest of everything that the pixels depend on, so that other images never use an
old file. While it grows it is called ``.part``, and its header counts the images that are surely on
the disk: after any interruption, the next run continues from there.

Beside it is a ``.crc32`` file: the checksum of each image, little-endian uint32. An image is
compared with it when it is first read, which takes a twentieth of the time of decoding it.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import math
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import PIL
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image, features
from rich.filesize import decimal
from torch import Tensor

from zoo.base import Finding, ImageDataset, cache_dir
from zoo.config.schema import Images
from zoo.data.pipeline import evaluation_batches
from zoo.errors import MachineError, UserError
from zoo.progress import Reporter
from zoo.support import environment
from zoo.support.files import alone, check_regular, read_bytes, writing

_RECIPE = 2  # raise it with every change of the content or format
_AT_A_TIME = 32  # images in a batch of a worker
_UNTIL_SURE = 1024  # images between two flushes to the disk
_WORTH_A_WORKER = 256  # images that are worth starting a process
_SUM = np.dtype("<u4")

_STALE = (
    "cached images differ from the images as they are now, and results may be of them: the file "
    "was damaged, or images were changed without a change of size; it is removed, and the next run "
    "decodes them again; by number"
)
_WAY_OUT = "make room, set ZOO_CACHE to another folder, or set images.cache=false"


class CachedImages:
    """A data set whose images, uint8 (N, channels, side, side), are in a memory-mapped file."""

    images: Tensor

    def __init__(self, dataset: ImageDataset, path: Path) -> None:
        self.dataset, self.path = dataset, path
        self.labels, self.class_names = dataset.labels, dataset.class_names
        self.images, self._sums = _kept(path)
        # Shared with the workers, so that only one of them compares an image.
        nothing = torch.zeros(len(self.images), dtype=torch.bool)
        self._sound: Tensor = nothing.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        self.check_pixels([index])
        planes = self.images[index].numpy()
        pixels = planes[0] if len(planes) == 1 else np.moveaxis(planes, 0, -1)
        return Image.fromarray(pixels), int(self.labels[index])

    def check_pixels(self, indices: Sequence[int]) -> None:
        """Compare images with their checksums, each the first time it is read.

        If one is damaged, the file is removed and a UserError raised.
        """
        sound = self._sound.numpy()
        for index in (i for i in indices if not sound[i]):
            if _sum(self.images[index]) != self._sums[index]:
                raise self._damaged(index)
            sound[index] = True

    def _damaged(self, index: int) -> UserError:
        with suppress(OSError):  # on Windows, while another process has it open
            self.path.unlink()
        left = f"; delete {str(self.path)!r}, and" if self.path.exists() else ";"
        return UserError(
            f"images.cache: image {index} in {str(self.path)!r} is not what was written there: the "
            f"file was damaged{left} run again, and the images are decoded again"
        )

    def fingerprint(self) -> str:
        """Return the fingerprint of the data set."""
        return self.dataset.fingerprint()

    def verify(self) -> list[str]:
        """Return the problems that the data set finds with its files."""
        return self.dataset.verify()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "images"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    # A worker that gets a copy maps the file itself; otherwise the pixels would be copied.
    def __getstate__(self) -> dict[str, Any]:
        own = ("images", "_sums")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.images, self._sums = _kept(self.path)


def decoded_once(
    datasets: Sequence[ImageDataset], side: int, *, workers: int | None, reporter: Reporter
) -> list[CachedImages]:
    """Return data sets whose images, scaled to side x side, are in the cache folder.

    An existing file is used. If two processes need the same file, the second waits for the first.
    ``workers`` is the number of processes that decode; None for one each core.

    Raises:
        UserError: an image cannot be decoded, the disk is full, the folder cannot be written.
    """
    files = [_File(dataset, side) for dataset in datasets]
    missing = [file for file in files if not file.is_whole()]
    _check_room(missing)
    for file in missing:
        with alone(file.path, reporter, _WAY_OUT):
            if not file.is_whole():
                _make(file, workers, reporter)
    return [CachedImages(file.dataset, file.path) for file in files]


def compare(dataset: ImageDataset) -> Iterator[Finding]:
    """Decode the images of a data set again, and yield the cached images that differ.

    Their files, which are damaged or older than a change of the images, are removed.
    """
    for path in _folder().glob(f"{glob.escape(type(dataset).__name__)}-*.npy"):
        side = path.stem.split("-")[-2]
        file = _File(dataset, int(side)) if side.isdecimal() else None
        if file is not None and file.path == path and file.is_whole():
            differing = sorted(_differing(file))
            if differing:
                path.unlink()
                yield Finding("warning", f"{_STALE}: {_some(differing)}", str(path))


def _differing(file: _File) -> Iterator[int]:
    kept = _kept(file.path)
    shape = kept.images.shape[1:]
    batches = evaluation_batches(
        file.dataset, file.images, batch_size=_AT_A_TIME, workers=file.workers(len(kept.sums))
    )
    batches = Reporter().track(batches, -(-len(kept.sums) // _AT_A_TIME), "comparing")
    images = (image for batch in batches for image in batch)
    for index, (now, written) in enumerate(zip(images, kept.sums, strict=True)):
        planes = max(len(now), shape[0])  # gray may be cached among images in colour
        if not written == _sum(kept.images[index]) == _sum(now.expand(planes, *shape[1:])):
            yield index


def _some(indices: list[int]) -> str:
    more = f" and {len(indices) - 5:,} more" if len(indices) > 5 else ""
    return ", ".join(map(str, indices[:5])) + more


class _File:
    """The file in which the images of a data set are cached, and its expected content."""

    def __init__(self, dataset: ImageDataset, side: int) -> None:
        self.dataset, self.images = dataset, Images(resize=side)
        name = f"{type(dataset).__name__}-{side}-{_key(dataset, side)}"
        self.path = _folder() / f"{name}.npy"
        self.part = self.path.with_suffix(".part")

    def is_whole(self) -> bool:
        try:
            return len(_kept(self.path).images) == len(self.dataset)
        except Exception:  # noqa: BLE001 missing, or damaged: NumPy raises anything
            return False

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first image; shapes that no network of the zoo takes are refused."""
        first = next(evaluation_batches(self.dataset, self.images, batch_size=1))[0]
        if first.dtype != torch.uint8 or len(first) not in (1, 3):
            raise UserError(
                f"images.cache: the data set has images of {len(first)} planes, {first.dtype}; "
                "only RGB and gray of 8 bits can be cached"
            )
        return tuple(first.shape)

    def size(self) -> int:
        """Return the bytes of all images."""
        return len(self.dataset) * math.prod(self.shape)

    def begun(self) -> int:
        """Return the bytes that are already written."""
        return self.part.stat().st_size if self.part.exists() else 0

    def workers(self, images: int) -> int:
        """Return how many processes are worth starting."""
        return min(environment.cores(), images // _WORTH_A_WORKER)

    def begun_files(self) -> tuple[Path, Path]:
        """Return the files that grow: the images and their checksums."""
        return self.part, _sums_of(self.path)


class _InColour(Exception):  # noqa: N818 not an error
    """An image in colour follows gray ones."""


def _make(file: _File, workers: int | None, reporter: Reporter) -> None:
    """Decode the images that are not yet on the disk, and give the file its final name."""
    with writing(file.part, _WAY_OUT):
        for path in file.begun_files():
            path.open("ab").close()
    try:
        try:
            _decode(file, workers, reporter)
        except _InColour:
            file.shape = (3, *file.shape[1:])
            _decode(file, workers, reporter)
        with writing(file.path, _WAY_OUT):
            file.part.replace(file.path)
    except UserError:  # the next attempt may have other images, so it starts again
        for path in file.begun_files():
            path.unlink(missing_ok=True)
        raise


def _decode(file: _File, workers: int | None, reporter: Reporter) -> None:
    part, sums = file.begun_files()
    with part.open("r+b", buffering=0) as handle, sums.open("r+b") as of_sums:
        growing = _Growing(handle, of_sums, file.shape)
        what = f"images {growing.count:,} to {len(file.dataset) - 1:,} are decoded once"
        reporter.say(f"cache    {what}: {decimal(file.size())} in {file.path}")
        _fill(growing, file, workers, reporter)


def _fill(growing: _Growing, file: _File, workers: int | None, reporter: Reporter) -> None:
    left = len(file.dataset) - growing.count
    batches = evaluation_batches(
        file.dataset,
        file.images,
        batch_size=_AT_A_TIME,
        start=growing.count,
        workers=file.workers(left) if workers is None else workers,
    )
    try:
        for batch in reporter.track(batches, -(-left // _AT_A_TIME), "decoding"):
            if batch.shape[1] > file.shape[0]:
                raise _InColour
            growing.append(batch.expand(-1, *file.shape))
    finally:
        growing.make_sure()


class _Growing:
    """A ``.npy`` file to which images are appended; its header counts those surely on the disk.

    NumPy pads the header, so its length does not depend on the count.
    """

    def __init__(self, handle: FileIO, sums: BinaryIO, shape: tuple[int, ...]) -> None:
        self.handle, self.shape, self.path = handle, shape, Path(handle.name)
        self.sums = sums
        self.count = self.sure = self._read_count()
        with writing(self.path, _WAY_OUT):
            sums.truncate(self.count * _SUM.itemsize)
            sums.seek(0, os.SEEK_END)
            self._write_count()
            handle.seek(self.count * math.prod(shape), os.SEEK_CUR)
            handle.truncate()

    def append(self, images: Tensor) -> None:
        """Append images, and flush them to the disk from time to time."""
        left = images.contiguous().numpy().data.cast("B")
        sums = np.array([_sum(image) for image in images], _SUM)
        with writing(self.path, _WAY_OUT):
            self.sums.write(sums.tobytes())
            while left:
                left = left[self.handle.write(left) :]
        self.count += len(images)
        if self.count - self.sure >= _UNTIL_SURE:
            self.make_sure()

    def make_sure(self) -> None:
        """Flush the images to the disk, and only then count them."""
        with writing(self.path, _WAY_OUT):
            self.sums.flush()
            os.fsync(self.sums.fileno())
            os.fsync(self.handle.fileno())
            end = self.handle.tell()
            self._write_count()
            os.fsync(self.handle.fileno())
            self.handle.seek(end)
        self.sure = self.count

    def _read_count(self) -> int:
        try:
            np.lib.format.read_magic(self.handle)
            shape, _, dtype = np.lib.format.read_array_header_1_0(self.handle)
        except Exception:  # noqa: BLE001 a new file, or damaged: NumPy raises anything
            return 0
        there = (self.path.stat().st_size - self.handle.tell()) // math.prod(self.shape)
        summed = os.fstat(self.sums.fileno()).st_size // _SUM.itemsize
        fits = shape[1:] == self.shape and dtype == np.uint8
        return min(shape[0], there, summed) if fits else 0

    def _write_count(self) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        self.handle.seek(0)
        np.lib.format.write_array_header_1_0(self.handle, header)


def _check_room(files: list[_File]) -> None:
    """Refuse to start if the disk would become full."""
    folder = _folder()
    wanted = sum(file.size() for file in files)
    with writing(folder, _WAY_OUT):
        needed = wanted - sum(file.begun() for file in files)
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free
    if needed > free:
        raise MachineError(
            f"images.cache needs {decimal(needed)} in {str(folder)!r}, where {decimal(free)} are "
            f"free; {_WAY_OUT}"
        )


class _Kept(NamedTuple):
    images: Tensor  # uint8 (N, channels, side, side), read when used
    sums: NDArray[np.uint32]  # (N,)


def _kept(path: Path) -> _Kept:
    """Return the images and checksums of a file; raise anything if it is missing or damaged."""
    check_regular(path)
    pixels = np.lib.format.open_memmap(path, mode="r")
    sums = np.frombuffer(read_bytes(_sums_of(path), len(pixels) * _SUM.itemsize), _SUM)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or len(pixels) != len(sums):
        raise ValueError(f"{path}: not images")
    with warnings.catch_warnings():  # torch warns that it has no read-only tensors
        warnings.simplefilter("ignore", UserWarning)
        return _Kept(torch.from_numpy(pixels), sums)


def _folder() -> Path:
    return cache_dir() / "images"


def _sums_of(path: Path) -> Path:
    return path.with_suffix(".crc32")


def _sum(image: Tensor) -> int:
    return zlib.crc32(image.contiguous().numpy().data)


def _key(dataset: ImageDataset, side: int) -> str:
    """Return a digest of everything that the pixels depend on, including the decoders."""
    kind = type(dataset)
    decoders = (PIL.__version__, features.version("libjpeg_turbo"), torchvision.__version__)
    what = (kind.__module__, kind.__qualname__, dataset.fingerprint(), len(dataset), side)
    return hashlib.sha256(repr((_RECIPE, what, decoders)).encode()).hexdigest()[:16]
