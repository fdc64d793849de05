"""From a data set and a sampler to batches of pixels, which are reproducible.

The randomness of batch t depends only on the seed and on t, not on the number of workers or on
earlier batches. So a resumed run sees the same pixels as one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms.v2 import RandomResizedCrop, functional

from zoo.base import BatchSampler, ImageDataset
from zoo.config.schema import Images
from zoo.data.decoding import to_rgb
from zoo.data.holdout import source_of
from zoo.errors import FAILURES, UserError, blame, blaming
from zoo.parallel.ranks import Ranks
from zoo.registry import contracts
from zoo.support import signals
from zoo.support.text import counted

TF: Any = functional  # it also takes PIL images, contrary to its annotations

_CPU = torch.device("cpu")
_MOST_SCALED = 1 << 25  # pixels of an image that is scaled as a whole: 4,096 x 8,192
_ENDLESS = "a sampler must go on endlessly, epoch after epoch"


class Crops(NamedTuple):
    """The part to crop from each image of a batch."""

    corners: Tensor  # int64 (N, 3): top and left in the image with its border, and 1 for mirrored
    height: int
    width: int
    pad: int = 0  # pixels of the black border


class Batch(NamedTuple):
    """A batch of training images."""

    iteration: int  # from 0
    indices: list[int]  # of its images in the data set
    state: dict[str, Any]  # of the sampler after it, to resume from
    mine: slice  # the images that this process embeds; with one process, all
    images: Tensor  # uint8 (n, channels, height, width), of these n
    labels: Tensor  # int64 (N,), of all
    crops: Crops | None = None  # still to be made of the images

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return its images, cropped there, and all labels on a device, without waiting for it."""
        images = self.images.to(device, non_blocking=True)
        if self.crops is not None:
            corners = self.crops.corners.to(device, non_blocking=True)
            images = crop_each(images, self.crops._replace(corners=corners))
        return images, self.labels.to(device, non_blocking=True)


class _Key(NamedTuple):
    iteration: int
    indices: list[int]
    state: dict[str, Any]
    mine: slice


def training_batches(
    dataset: ImageDataset,
    images: Images,
    sampler: BatchSampler,
    *,
    seed: int,
    start: int,
    stop: int,
    workers: int = 0,
    device: torch.device = _CPU,
    ranks: Ranks | None = None,
) -> Iterator[Batch]:
    """Yield the batches of iterations start to stop - 1, loaded ahead by the workers.

    Of several processes, each draws all indices, and loads only the images of its share.

    A sampler that ``draws_late`` is asked for a batch only when it is needed, so without workers.
    For devices other than the CPU, images in memory are passed on whole, to be cropped there.
    """
    keys = _Keys(sampler, len(dataset), start, stop, ranks or Ranks())
    if getattr(sampler, "draws_late", False):
        workers = 0
    whole = device.type != "cpu"
    return load(_TrainingSet(dataset, images, seed, whole), keys, workers, device)


def evaluation_batches(
    dataset: ImageDataset,
    images: Images,
    *,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
    workers: int = 0,
    device: torch.device = _CPU,
) -> Iterator[Tensor]:
    """Yield the images of a data set in order, resized and centre-cropped; uint8 (N, C, H, W).

    With ``start`` and ``stop``, only images start to stop - 1.
    """
    end = len(dataset) if stop is None else stop
    keys = [range(i, min(i + batch_size, end)) for i in range(start, end, batch_size)]
    return load(_TestSet(dataset, images), keys, workers, device)


def centre_crops(dataset: ImageDataset, images: Images, indices: Sequence[int]) -> Tensor:
    """Return some images of a data set, prepared as in the test; uint8 (N, C, H, W)."""
    return _TestSet(dataset, images)[indices]


def crop_each(images: Tensor, crops: Crops) -> Tensor:
    """Crop images (N, C, H, W) on their device, by one gather that makes no GPU wait."""

    def count(stop: int) -> Tensor:
        return torch.arange(stop, device=images.device)

    images = torch.nn.functional.pad(images, [crops.pad] * 4)
    top, left, mirrored = (column[:, None] for column in crops.corners.unbind(1))
    across = count(crops.width)
    rows = top + count(crops.height)
    columns = left + torch.where(mirrored > 0, crops.width - 1 - across, across)
    which = count(len(images))[:, None, None, None]
    planes = count(images.shape[1])[:, None, None]
    return images[which, planes, rows[:, None, :, None], columns[:, None, None, :]]


def load(dataset: Any, keys: Any, workers: int, device: torch.device) -> Iterator[Any]:
    """Yield ``dataset[key]`` for each key, in order; a UserError is raised unchanged."""
    loader: DataLoader[Any] = DataLoader(
        _Guarded(dataset),
        sampler=keys,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        # Its own generator: by default, the workers' seed is drawn from the global one, and the
        # dropout of a resumed run, which draws once more, would differ.
        generator=torch.Generator(),
        worker_init_fn=_ignore_requests_to_stop,
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


def _ignore_requests_to_stop(worker: int) -> None:
    """Leave them to the process that trains, which may still need the batch that is being made."""
    signals.ignore()


def drawn(sampler: BatchSampler, images: int) -> Iterator[list[int]]:
    """Yield a sampler's batches endlessly; raise a UserError if it ends or gives something else."""
    name, count = type(sampler).__name__, 0
    with blaming(name):
        for given in sampler:
            fault = contracts.batch(given, images)
            if fault:
                raise UserError(f"{name} {fault}")
            count += 1
            yield [int(i) for i in given]
    raise UserError(f"{name} ended after {counted(count, 'batch', 'batches')}; {_ENDLESS}")


def first_batch(sampler: BatchSampler, images: int) -> list[int]:
    """Return the first batch; raise a UserError if it, or the state to save, is not valid."""
    indices = next(drawn(sampler, images))
    try:
        fault = contracts.plain_state(sampler.state_dict())
    except FAILURES as error:
        raise blame(f"{type(sampler).__name__}.state_dict", error) from error
    if fault:
        raise UserError(f"{type(sampler).__name__} {fault}")
    return indices


def image_of(dataset: ImageDataset, index: int) -> Image.Image:
    """Return an image of a data set; raise a UserError if it fails or returns anything else."""
    name = type(dataset).__name__
    try:
        given = dataset[index]
    except (UserError, OSError, MemoryError):
        raise
    except FAILURES as error:
        raise blame(f"reading image {index} of {name}", error) from error
    fault = contracts.item(given)
    if fault:
        raise UserError(f"{name}[{index}] {fault}")
    image: Image.Image = given[0]
    return image


class _Guarded(Dataset[Any]):
    """Returns a UserError as a value: a worker's exceptions arrive with its traceback as text."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.dataset[key]
        except UserError as error:
            return error


class _Keys(Sampler[_Key]):
    """Numbers the batches of a sampler and records its state after each."""

    def __init__(
        self, sampler: BatchSampler, images: int, start: int, stop: int, ranks: Ranks
    ) -> None:
        self.sampler, self.images, self.start, self.stop = sampler, images, start, stop
        self.ranks = ranks

    def __iter__(self) -> Iterator[_Key]:
        batches = drawn(self.sampler, self.images)
        for iteration in range(self.start, self.stop):
            indices = next(batches)
            if len(indices) < self.ranks.size:
                raise UserError(
                    f"a batch of {counted(len(indices), 'image')} cannot be divided among "
                    f"{self.ranks.size} processes; lower train.processes"
                )
            mine = self.ranks.share(len(indices))
            yield _Key(iteration, indices, self.sampler.state_dict(), mine)

    def __len__(self) -> int:
        return self.stop - self.start


class _TrainingSet(Dataset[Batch]):
    def __init__(self, dataset: ImageDataset, images: Images, seed: int, whole: bool) -> None:
        self.dataset, self.images, self.seed, self.whole = dataset, images, seed, whole
        self.labels = torch.from_numpy(np.asarray(dataset.labels, dtype=np.int64))

    def __getitem__(self, key: _Key) -> Batch:
        # Drawn for all images of the batch, so that the number of processes changes no crop.
        rng = np.random.default_rng([self.seed, key.iteration])
        draws = rng.random((len(key.indices), 3))[key.mine]
        labels = self.labels[key.indices]
        source, indices = source_of(self.dataset, key.indices[key.mine])
        pixels = _in_memory(source, indices, self.images, self.images.pad)
        if pixels is None or self.images.random_crop == "resized":
            return Batch(*key, self._crop_one_by_one(key, rng, draws), labels)
        crops = _random_crops(draws, pixels, self.images)
        if self.whole:
            # index_select, as indexing by a list is 14 times slower.
            whole = pixels.index_select(0, torch.tensor(indices))
            return Batch(*key, whole, labels, crops)
        return Batch(*key, _crop_some(pixels, indices, crops), labels)

    def _crop_one_by_one(self, key: _Key, rng: np.random.Generator, draws: Any) -> Tensor:
        seeds = rng.integers(2**63, size=len(key.indices)).tolist()
        crops = [
            self._crop_one(*one)
            for one in zip(key.indices[key.mine], draws, seeds[key.mine], strict=True)
        ]
        return _stack(crops, key.indices[key.mine])

    def _crop_one(self, index: int, draw: Sequence[float], seed: int) -> Tensor:
        # torchvision draws from the global generator, which training uses: give it another state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _random_input(_picture(self.dataset, index), self.images, draw)


class _TestSet(Dataset[Tensor]):
    def __init__(self, dataset: ImageDataset, images: Images) -> None:
        self.dataset, self.images = dataset, images

    def __getitem__(self, key: Sequence[int]) -> Tensor:
        source, indices = source_of(self.dataset, key)
        pixels = _in_memory(source, indices, self.images)
        if pixels is not None:
            return _crop_some(pixels, indices, _centre_crops(len(key), pixels, self.images))
        crops = [_test_input(_picture(self.dataset, i), self.images) for i in key]
        return _stack(crops, list(key))


def _in_memory(
    dataset: ImageDataset, wanted: Sequence[int], images: Images, border: int = 0
) -> Tensor | None:
    """Return the images (N, C, H, W) to crop; None if each has to be decoded or scaled."""
    pixels = getattr(dataset, "images", None)
    if not isinstance(pixels, Tensor):
        return None
    sides = pixels.shape[-2:]
    if images.resize is not None and set(sides) != {images.resize}:
        return None
    if images.crop is not None and min(sides) < images.crop - 2 * border:
        return None
    check = getattr(dataset, "check_pixels", None)
    if check is not None:
        check(wanted)
    return pixels


def _random_crops(draws: NDArray[np.float64], pixels: Tensor, images: Images) -> Crops:
    height, width = pixels.shape[-2:]
    corners = np.zeros((len(draws), 3), dtype=np.int64)
    if images.crop is not None:
        room = [side + 2 * images.pad - images.crop + 1 for side in (height, width)]
        corners[:, :2] = draws[:, :2] * room
        height = width = images.crop
    if images.mirror:
        corners[:, 2] = draws[:, 2] < 0.5
    return Crops(torch.from_numpy(corners), height, width, images.pad)


def _centre_crops(count: int, pixels: Tensor, images: Images) -> Crops:
    height, width = pixels.shape[-2:]
    corner = [0, 0, 0]
    if images.crop is not None:
        corner[:2] = _centre_corner(height, width, images.crop)
        height = width = images.crop
    return Crops(torch.tensor([corner] * count), height, width)


def _crop_some(pixels: Tensor, indices: Sequence[int], crops: Crops) -> Tensor:
    """Do the same as :func:`crop_each` on the CPU, reading only the wanted part of each image."""
    source = pixels.numpy()
    height, width = source.shape[-2:]
    parts = np.zeros((len(indices), source.shape[1], crops.height, crops.width), source.dtype)
    for part, index, (top, left, mirrored) in zip(
        parts, indices, crops.corners.tolist(), strict=True
    ):
        rows, down = _overlap(top - crops.pad, crops.height, height)
        columns, across = _overlap(left - crops.pad, crops.width, width)
        target = part[..., ::-1] if mirrored else part
        target[:, down, across] = source[index, :, rows, columns]
    return torch.from_numpy(parts)


def _overlap(start: int, length: int, side: int) -> tuple[slice, slice]:
    """Return the overlap of a window and a side, as slices of the side and of the window."""
    first = max(start, 0)
    last = max(first, min(start + length, side))
    return slice(first, last), slice(first - start, last - start)


class _Scaled(NamedTuple):
    """An image and its target size; a part can be scaled without the whole.

    A file of 300 bytes may hold 1 x 60,000 pixels, which take gigabytes once the shorter side is
    scaled to 256.
    """

    image: Image.Image
    height: int
    width: int

    @property
    def fits(self) -> bool:
        """Whether the whole image already has this size, or takes little memory."""
        is_there = self.image.size == (self.width, self.height)
        return is_there or self.height * self.width <= _MOST_SCALED

    def whole(self) -> Image.Image:
        """Return the scaled image."""
        scaled: Image.Image = TF.resize(self.image, [self.height, self.width], antialias=True)
        return scaled

    def part(self, top: int, left: int, height: int, width: int) -> Image.Image:
        """Return a part of the scaled image; pixels outside of it are black."""
        if self.fits:
            return self.whole().crop((left, top, left + width, top + height))
        rows, down = _overlap(top, height, self.height)
        columns, across = _overlap(left, width, self.width)
        part = Image.new(self.image.mode, (width, height))
        size = (columns.stop - columns.start, rows.stop - rows.start)
        if all(size):
            part.paste(self.scaled_part(rows, columns, size), (across.start, down.start))
        return part

    def scaled_part(self, rows: slice, columns: slice, size: tuple[int, int]) -> Image.Image:
        """Return some rows and columns of the scaled image, scaled again to a size (w, h)."""
        x, left, right = _span(columns, self.image.width / self.width, self.image.width, size[0])
        y, upper, lower = _span(rows, self.image.height / self.height, self.image.height, size[1])
        needed = self.image.crop((x.start, y.start, x.stop, y.stop))
        return needed.resize(size, Image.Resampling.BILINEAR, (left, upper, right, lower))


def _span(part: slice, factor: float, side: int, pixels: int) -> tuple[slice, float, float]:
    """Return the pixels of a side from which a part of it is made, and the part's place in them.

    They are few, since Pillow takes the place in single precision.
    """
    start, stop = part.start * factor, part.stop * factor
    reach = math.ceil((stop - start) / pixels) + 1  # of the filter
    first, last = max(0, math.floor(start) - reach), min(side, math.ceil(stop) + reach)
    return slice(first, last), start - first, min(stop - first, last - first)


def _scaled(image: Image.Image, images: Images) -> _Scaled:
    if images.resize is None:
        return _Scaled(image, image.height, image.width)
    if images.keep_aspect:
        return _Scaled(image, *_short_side(image.height, image.width, images.resize))
    return _Scaled(image, images.resize, images.resize)


def _at_least(scaled: _Scaled, side: int) -> _Scaled:
    """Enlarge an image whose shorter side is below the crop, so that the crop fits."""
    if min(scaled.height, scaled.width) >= side:
        return scaled
    source = scaled.whole() if scaled.fits else scaled.image
    return _Scaled(source, *_short_side(scaled.height, scaled.width, side))


def _short_side(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the size whose shorter side is ``side``; the other is rounded as in torchvision."""
    if height < width:
        return side, int(side * width / height)
    return int(side * height / width), side


def _random_input(image: Image.Image, images: Images, draw: Sequence[float]) -> Tensor:
    """Resize, crop at random, mirror by chance: uint8 (C, crop, crop)."""
    scaled = _scaled(image, images)
    if images.crop is None:
        image = scaled.whole()
    elif images.random_crop == "resized":
        image = _resized_crop(scaled, images.crop, images.scale)
    else:
        scaled = _at_least(scaled, images.crop - 2 * images.pad)
        border = 2 * images.pad
        top, left = _offset(draw, scaled.height + border, scaled.width + border, images.crop)
        image = scaled.part(top - images.pad, left - images.pad, images.crop, images.crop)
    if images.mirror and draw[2] < 0.5:
        image = TF.horizontal_flip(image)
    return _pixels(image)


def _resized_crop(scaled: _Scaled, side: int, scale: tuple[float, float]) -> Image.Image:
    crop = RandomResizedCrop(side, scale=scale, antialias=True)
    if scaled.fits:
        part: Image.Image = crop(scaled.whole())
        return part
    blank = torch.empty(1, scaled.height, scaled.width, device="meta")
    top, left, height, width = crop.get_params(blank, list(scale), list(crop.ratio))
    rows, columns = slice(top, top + height), slice(left, left + width)
    return scaled.scaled_part(rows, columns, (side, side))


def _offset(draw: Sequence[float], height: int, width: int, side: int) -> tuple[int, int]:
    return int(draw[0] * (height - side + 1)), int(draw[1] * (width - side + 1))


def _test_input(image: Image.Image, images: Images) -> Tensor:
    scaled = _scaled(image, images)
    if images.crop is None:
        return _pixels(scaled.whole())
    scaled = _at_least(scaled, images.crop)
    corner = _centre_corner(scaled.height, scaled.width, images.crop)
    return _pixels(scaled.part(*corner, images.crop, images.crop))


def _centre_corner(height: int, width: int, side: int) -> tuple[int, int]:
    return round((height - side) / 2), round((width - side) / 2)  # as torchvision does


def _picture(dataset: ImageDataset, index: int) -> Image.Image:
    """Return an image in mode RGB or L, converted if a data set gives another mode."""
    image = image_of(dataset, index)
    return image if image.mode in ("RGB", "L") else to_rgb(image)


def _pixels(image: Image.Image) -> Tensor:
    pixels: Tensor = TF.pil_to_tensor(image)
    return pixels


def _stack(crops: list[Tensor], indices: list[int]) -> Tensor:
    for i, image in zip(indices, crops, strict=True):
        if image.shape[1:] != crops[0].shape[1:]:
            sizes = ["x".join(map(str, one.shape[:0:-1])) for one in (crops[0], image)]
            raise UserError(
                f"images {indices[0]} and {i} of the data set have {sizes[0]} and {sizes[1]} "
                "pixels; set images.resize or images.crop, so that a batch has one size"
            )
    return torch.stack(same_planes(crops))


def same_planes(images: Sequence[Tensor]) -> list[Tensor]:
    """Return images (..., planes, H, W), all expanded to colour if any of them is in colour."""
    planes = max((image.shape[-3] for image in images), default=0)
    return [image.expand(*image.shape[:-3], planes, -1, -1) for image in images]
