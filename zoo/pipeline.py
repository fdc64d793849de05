"""From a data set and a sampler to batches of pixels, the same whoever loads them and when.

What is random about batch t depends on the seed and on t alone: not on the number of workers, not
on what was loaded before it. So a run that is resumed sees the pixels it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms.v2 import RandomResizedCrop, functional

from zoo.base import BatchSampler, ImageDataset
from zoo.errors import UserError
from zoo.schema import Images

TF: Any = functional  # it takes PIL images as well, whatever it declares


class Batch(NamedTuple):
    """A batch of training images.

    Attributes:
        iteration: which one, from 0.
        indices: of its images in the data set.
        state: of the sampler after it, to go on from there.
        images: uint8 (N, channels, height, width).
        labels: int64 (N,).
    """

    iteration: int
    indices: list[int]
    state: dict[str, Any]
    images: Tensor
    labels: Tensor


class _Key(NamedTuple):
    iteration: int
    indices: list[int]
    state: dict[str, Any]


def training_batches(
    dataset: ImageDataset,
    images: Images,
    sampler: BatchSampler,
    *,
    seed: int,
    start: int,
    stop: int,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Yield the batches of iterations start to stop - 1, loaded ahead by the workers.

    A sampler that ``draws_late`` is asked for a batch only when it is due, so without workers.
    """
    keys = _Keys(sampler, start, stop)
    if getattr(sampler, "draws_late", False):
        workers = 0
    return _load(_TrainingSet(dataset, images, seed), keys, workers, pin_memory)


def evaluation_batches(
    dataset: ImageDataset,
    images: Images,
    *,
    batch_size: int,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Tensor]:
    """Yield the images of a data set in order, resized and centre-cropped; uint8 (N, C, H, W)."""
    size = len(dataset)
    keys = [range(i, min(i + batch_size, size)) for i in range(0, size, batch_size)]
    return _load(_TestSet(dataset, images), keys, workers, pin_memory)


def centre_crops(dataset: ImageDataset, images: Images, indices: Sequence[int]) -> Tensor:
    """Return some images of a data set as they are at test; uint8 (N, C, H, W)."""
    return _TestSet(dataset, images)[indices]


def _load(dataset: Any, keys: Any, workers: int, pin_memory: bool) -> Iterator[Any]:
    loader: DataLoader[Any] = DataLoader(
        _Guarded(dataset),
        sampler=keys,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        # Its own generator: the default would draw the workers' seed from the global one, and a
        # resumed run, which draws once more, would then differ in its dropout.
        generator=torch.Generator(),
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


class _Guarded(Dataset[Any]):
    """Hands a UserError over as it is: a worker's exceptions come with its traceback as text."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.dataset[key]
        except UserError as error:
            return error


class _Keys(Sampler[_Key]):
    """Numbers the batches of a sampler and notes where it stood after each."""

    def __init__(self, sampler: BatchSampler, start: int, stop: int) -> None:
        self.sampler, self.start, self.stop = sampler, start, stop

    def __iter__(self) -> Iterator[_Key]:
        batches = iter(self.sampler)
        for iteration in range(self.start, self.stop):
            indices = [int(i) for i in next(batches)]
            yield _Key(iteration, indices, self.sampler.state_dict())

    def __len__(self) -> int:
        return self.stop - self.start


class _TrainingSet(Dataset[Batch]):
    def __init__(self, dataset: ImageDataset, images: Images, seed: int) -> None:
        self.dataset, self.images, self.seed = dataset, images, seed
        self.labels = torch.from_numpy(np.asarray(dataset.labels, dtype=np.int64))

    def __getitem__(self, key: _Key) -> Batch:
        rng = np.random.default_rng([self.seed, key.iteration])
        draws = rng.random((len(key.indices), 3))
        pixels = getattr(self.dataset, "images", None)
        if isinstance(pixels, Tensor) and not self._needs_pil():
            cut = _cut_together(pixels[key.indices], self.images, draws)
        else:
            cut = self._cut_one_by_one(key, rng, draws)
        return Batch(*key, cut, self.labels[key.indices])

    def _needs_pil(self) -> bool:
        return self.images.resize is not None or self.images.random_crop == "resized"

    def _cut_one_by_one(self, key: _Key, rng: np.random.Generator, draws: Any) -> Tensor:
        # torchvision draws from the global generator, which is the training's: lend it another.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            cut = [
                _cut(self.dataset[i][0], self.images, draw)
                for i, draw in zip(key.indices, draws, strict=True)
            ]
        return _stack(cut, key.indices)


class _TestSet(Dataset[Tensor]):
    def __init__(self, dataset: ImageDataset, images: Images) -> None:
        self.dataset, self.images = dataset, images

    def __getitem__(self, key: Sequence[int]) -> Tensor:
        pixels = getattr(self.dataset, "images", None)
        if isinstance(pixels, Tensor) and self.images.resize is None:
            whole = pixels[slice(key.start, key.stop) if isinstance(key, range) else list(key)]
            crop = self.images.crop
            return whole if crop is None else TF.center_crop(whole, [crop, crop])
        cut = [_centre(_resize(self.dataset[i][0], self.images), self.images) for i in key]
        return _stack(cut, list(key))


def _cut(image: Image.Image, images: Images, draw: Sequence[float]) -> Tensor:
    """Resize, crop at random, mirror by chance: uint8 (C, crop, crop)."""
    image = _resize(image, images)
    if images.crop is not None and images.random_crop == "resized":
        crop = RandomResizedCrop(images.crop, scale=images.scale, antialias=True)
        image = crop(image)
    elif images.crop is not None:
        image = _at_least(image, images.crop - 2 * images.pad)
        if images.pad:
            image = TF.pad(image, [images.pad])
        top, left = _offset(draw, image.height, image.width, images.crop)
        image = TF.crop(image, top, left, images.crop, images.crop)
    if images.mirror and draw[2] < 0.5:
        image = TF.horizontal_flip(image)
    return _pixels(image)


def _cut_together(pixels: Tensor, images: Images, draws: Any) -> Tensor:
    """Do the same to images (N, C, H, W) that are in memory, without going through PIL."""
    if images.pad:
        pixels = TF.pad(pixels, [images.pad])
    if images.crop is not None:
        height, width = pixels.shape[-2:]
        side = images.crop
        corners = [_offset(draw, height, width, side) for draw in draws]
        pixels = torch.stack(
            [
                pixels[i, :, top : top + side, left : left + side]
                for i, (top, left) in enumerate(corners)
            ]
        )
    if images.mirror:
        mirrored = torch.from_numpy(draws[:, 2] < 0.5)
        pixels[mirrored] = pixels[mirrored].flip(-1)
    return pixels


def _offset(draw: Sequence[float], height: int, width: int, side: int) -> tuple[int, int]:
    return int(draw[0] * (height - side + 1)), int(draw[1] * (width - side + 1))


def _resize(image: Image.Image, images: Images) -> Image.Image:
    if images.resize is None:
        return image
    size = [images.resize] * (1 if images.keep_aspect else 2)
    resized: Image.Image = TF.resize(image, size, antialias=True)
    return resized


def _centre(image: Image.Image, images: Images) -> Tensor:
    if images.crop is not None:
        image = TF.center_crop(_at_least(image, images.crop), [images.crop, images.crop])
    return _pixels(image)


def _pixels(image: Image.Image) -> Tensor:
    pixels: Tensor = TF.pil_to_tensor(image)
    return pixels


def _at_least(image: Image.Image, side: int) -> Image.Image:
    """Enlarge an image whose short side is below the crop, so that the crop fits into it."""
    return TF.resize(image, [side], antialias=True) if min(image.size) < side else image


def _stack(cut: list[Tensor], indices: list[int]) -> Tensor:
    for i, image in zip(indices, cut, strict=True):
        if image.shape != cut[0].shape:
            raise UserError(
                f"images {indices[0]} and {i} of the data set differ in shape, "
                f"{tuple(cut[0].shape)} and {tuple(image.shape)}: set images.resize or images.crop"
            )
    return torch.stack(cut)
