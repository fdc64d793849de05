"""Batches of pixels: the same from every path, and a function of seed and iteration alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from zoo import UserError
from zoo.datasets.m_per_class import MPerClassSampler
from zoo.pipeline import evaluation_batches, training_batches
from zoo.schema import Images


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
        with pytest.raises(UserError, match=r"differ in shape.*set images.resize") as error:
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
