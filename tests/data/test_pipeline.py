"""Batches of pixels: the same from every path, and a function of seed and iteration alone."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from zoo import UserError
from zoo.config.schema import Images
from zoo.data import pipeline
from zoo.data.decoding import to_rgb
from zoo.data.pipeline import evaluation_batches, same_planes, training_batches
from zoo.datasets.m_per_class import MPerClassSampler


class Pictures:
    """Random pictures, in memory or one at a time, gray or in colour."""

    def __init__(self, sides, *, channels=3, in_memory=False):
        rng = np.random.default_rng(0)
        shapes = [(h, w) if channels == 1 else (h, w, channels) for h, w in sides]
        self.pixels = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
        self.labels = np.arange(len(sides)) % 4
        self.class_names = list("abcd")
        if in_memory:
            stacked = np.stack(self.pixels).reshape(len(sides), *sides[0], channels)
            self.images = torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return Image.fromarray(self.pixels[index]), int(self.labels[index])


def load(dataset, images, start=0, stop=4, seed=0, workers=0):
    sampler = MPerClassSampler(dataset.labels, 4, 2, seed=seed)
    for _, _ in zip(range(start), sampler, strict=False):
        pass
    options = {"seed": seed, "start": start, "stop": stop, "workers": workers}
    return list(training_batches(dataset, images, sampler, **options))


def same(one, other):
    return len(one) == len(other) and all(
        a[:3] == b[:3] and torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        for a, b in zip(one, other, strict=True)
    )


CUTS = [
    Images(),
    Images(crop=20),
    Images(crop=20, mirror=True),
    Images(crop=24, pad=3),
    Images(crop=24, pad=3, mirror=True),
    Images(mirror=True),
]


@pytest.mark.parametrize("images", CUTS, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_in_memory_are_cut_as_pictures_are(images, channels):
    sides = [(24, 26)] * 16 if images.crop else [(24, 24)] * 16
    one = load(Pictures(sides, channels=channels), images)
    together = load(Pictures(sides, channels=channels, in_memory=True), images)
    assert one[0].images.dtype == torch.uint8
    assert same(one, together)
    tests = [
        list(
            evaluation_batches(
                Pictures(sides, channels=channels, in_memory=m), images, batch_size=5
            )
        )
        for m in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*tests, strict=True))
    assert sum(map(len, tests[0])) == 16


RANDOM = [Images(crop=20, mirror=True), Images(crop=20, random_crop="resized", mirror=True)]


@pytest.mark.parametrize("images", RANDOM, ids=["translate", "resized"])
def test_a_batch_depends_on_seed_and_iteration_alone(images):
    data = Pictures([(24, 26)] * 16)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    whole = load(data, images, stop=6)
    assert torch.equal(torch.get_rng_state(), state)  # the training's randomness is its own
    assert same(whole[3:], load(data, images, start=3, stop=6))
    assert same(whole, load(data, images, stop=6, workers=2))
    assert not same(whole, load(data, images, stop=6, seed=1))
    again = next(b for b in whole[2:] if set(b.indices) & set(whole[0].indices))
    i = next(i for i in again.indices if i in whole[0].indices)
    first, later = (b.images[b.indices.index(i)] for b in (whole[0], again))
    assert not torch.equal(first, later)


@pytest.mark.slow
def test_every_offset_of_a_crop_occurs_and_half_are_mirrored():
    data = Pictures([(8, 8)] * 8)
    seen = set()
    mirrored = 0
    for batch in load(data, Images(crop=6, mirror=True), stop=100):
        for i, image in zip(batch.indices, batch.images.permute(0, 2, 3, 1).numpy(), strict=True):
            for top in range(3):
                for left in range(3):
                    cut = data.pixels[i][top : top + 6, left : left + 6]
                    if (cut == image).all() or (cut[:, ::-1] == image).all():
                        seen.add((top, left))
                        mirrored += not (cut == image).all()
    assert len(seen) == 9
    assert 300 < mirrored < 500


def test_pictures_of_any_size_are_resized_as_the_paper_does():
    data = Pictures([(20, 40), (40, 20), (33, 31), (5, 90)] * 2)
    (batch,) = load(data, Images(resize=32, crop=28), stop=1)
    assert batch.images.shape == (8, 3, 28, 28)
    (batch,) = load(data, Images(resize=32, keep_aspect=True, crop=28), stop=1)
    assert batch.images.shape == (8, 3, 28, 28)
    (batch,) = load(data, Images(crop=28), stop=1)  # the small ones are enlarged
    assert batch.images.shape == (8, 3, 28, 28)
    (found,) = evaluation_batches(data, Images(crop=28), batch_size=8)
    assert found.shape == (8, 3, 28, 28)


def test_pictures_of_different_sizes_in_one_batch_are_refused_with_advice():
    data = Pictures([(20, 40), (40, 20), (33, 31), (5, 90)] * 2)
    for workers in (0, 1):
        with pytest.raises(
            UserError, match=r"have \d+x\d+ and \d+x\d+ pixels; set images.resize"
        ) as error:
            load(data, Images(), stop=1, workers=workers)
        assert "Traceback" not in str(error.value)


def test_the_state_is_the_samplers_after_each_batch_however_far_the_workers_are():
    data = Pictures([(8, 8)] * 16)
    for workers in (0, 2):
        states = [b.state for b in load(data, Images(), stop=5, workers=workers)]
        assert states == [{"epoch": (i + 1) // 2, "batch": (i + 1) % 2} for i in range(5)]


def test_the_dataset_may_be_gray_in_pil_and_keeps_its_one_plane():
    (batch,) = load(Pictures([(9, 9)] * 8, channels=1), Images(), stop=1)
    assert batch.images.shape == (8, 1, 9, 9)


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")


class Mixed(Pictures):
    """One picture in each mode."""

    def __init__(self):
        super().__init__([(24, 26)] * len(MODES))
        self.labels = np.arange(len(MODES)) % 7

    def __getitem__(self, index):
        return Image.new(MODES[index], (26, 24)), int(self.labels[index])


@pytest.mark.parametrize("images", [Images(crop=20, mirror=True), Images(resize=24)], ids=str)
def test_pictures_of_all_modes_make_one_batch_in_training_and_at_test(images):
    data = Mixed()
    for batch in load(data, images, stop=6):
        for i, image in zip(batch.indices, batch.images, strict=True):
            assert torch.equal(image, whole_of(data[i][0]).expand_as(image)), MODES[i]
    found = torch.cat(same_planes([*evaluation_batches(data, images, batch_size=5)]))
    assert found.shape[:2] == (len(MODES), 3)


def whole_of(picture):
    """A pixel of a picture of one colour."""
    return torch.tensor(to_rgb(picture).getpixel((0, 0)), dtype=torch.uint8)[:, None, None]


# Each was gigabytes, for the whole picture was scaled before the crop was cut out of it.
THIN = [
    Images(resize=256, keep_aspect=True, crop=224),
    Images(resize=200, keep_aspect=True, crop=224, pad=16, mirror=True),
    Images(resize=256, keep_aspect=True, crop=224, random_crop="resized"),
    Images(crop=224),
]


@pytest.mark.parametrize("images", THIN, ids=str)
@pytest.mark.parametrize("lies", [True, False])
def test_of_a_thin_picture_only_what_is_cut_out_is_scaled(images, lies):
    ramp = np.linspace(0, 255, 60_000).astype(np.uint8).reshape((1, -1) if lies else (-1, 1))
    picture = Image.fromarray(ramp)
    with limited_memory(1 << 30):
        centre = pipeline._test_input(picture, images)
        cut = pipeline._random_input(picture, images, [0.5, 0.25, 0.9])
    assert centre.shape == cut.shape == (1, 224, 224)
    assert (centre == 127).all()  # so near to each other are the pixels in the middle of it
    inner = cut[..., 16:-16, 16:-16]
    assert inner.min() == inner.max() > 0


@contextmanager
def limited_memory(more):
    """Allow this process so many bytes more of address space."""
    resource = pytest.importorskip("resource")
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux keeps to the limit")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


PARTS = [
    Images(resize=32, keep_aspect=True, crop=28),
    Images(resize=32, keep_aspect=True, crop=28, pad=3),
    Images(crop=28, pad=2),
    Images(crop=28, mirror=True),
]


@pytest.mark.parametrize("images", PARTS, ids=str)
def test_a_part_that_is_scaled_is_the_part_of_the_scaled(images, monkeypatch):
    """Pillow rounds to whole numbers after each axis: by one, parts may differ."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        height, width = rng.integers(1, 90, 2)
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        draw = rng.random(3)
        ways = []
        for most in (1 << 25, 0):
            monkeypatch.setattr(pipeline, "_MOST_SCALED", most)
            ways.append(pipeline._random_input(picture, images, draw).int())
            ways.append(pipeline._test_input(picture, images).int())
        assert (ways[0] - ways[2]).abs().max() <= 1
        assert (ways[1] - ways[3]).abs().max() <= 1
        assert ways[0].float().std() > 1


def test_the_shorter_side_is_scaled_as_torchvision_does():
    rng = np.random.default_rng(0)
    for height, width, side in rng.integers(1, 400, (300, 3)).tolist():
        scaled = functional.resize(torch.empty(1, height, width), [side])
        assert pipeline._short_side(height, width, side) == tuple(scaled.shape[1:])
