"""Classes that are held back: which, and what is seen of a data set without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from zoo import UserError
from zoo.config.schema import Images
from zoo.data.holdout import ClassSubset, hold_out
from zoo.data.pipeline import centre_crops, evaluation_batches, training_batches
from zoo.datasets.m_per_class import MPerClassSampler


class Pictures:
    """Gray pictures of 12 classes, in no order; with their pixels in memory or without."""

    def __init__(self, in_memory=True, classes=12, each=5):
        rng = np.random.default_rng(0)
        self.class_names = [f"class {i}" for i in range(classes)]
        self.labels = rng.permutation(np.repeat(np.arange(classes), each))
        self.pixels = rng.integers(0, 256, (len(self.labels), 1, 9, 9), dtype=np.uint8)
        if in_memory:
            self.images = torch.from_numpy(self.pixels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return Image.fromarray(self.pixels[index, 0]), int(self.labels[index])

    def fingerprint(self):
        return "f"

    def verify(self):
        return ["one is missing"]


def test_every_image_is_on_one_side_with_its_class():
    whole = Pictures()
    rest, held = hold_out(whole, 0.25, seed=0)
    assert (len(rest.class_names), len(held.class_names)) == (9, 3)
    assert sorted(rest.class_names + held.class_names) == sorted(whole.class_names)
    assert sorted([*rest.indices, *held.indices]) == list(range(len(whole)))
    for part in (rest, held):
        assert set(part.labels) == set(range(len(part.class_names)))
        assert len(part) == 5 * len(part.class_names)
        assert part.verify() == ["one is missing"]
        for i in range(len(part)):
            image, label = part[i]
            assert label == part.labels[i]
            assert part.class_names[label] == whole.class_names[whole.labels[part.indices[i]]]
            assert np.array_equal(image, whole.pixels[part.indices[i], 0])


def test_a_seed_holds_back_the_same_and_another_seed_others():
    first = [part.class_names for part in hold_out(Pictures(), 0.25, seed=0)]
    assert [part.class_names for part in hold_out(Pictures(), 0.25, seed=0)] == first
    others = {tuple(hold_out(Pictures(), 0.25, seed=s)[1].class_names) for s in range(20)}
    assert len(others) > 10
    assert {name for names in others for name in names} == set(Pictures().class_names)


def test_classes_of_one_image_are_not_held_back():
    with pytest.raises(UserError, match="the 3 held-out classes have one image each"):
        hold_out(Pictures(each=1), 0.25, seed=0)


def test_a_class_more_moves_few_across():
    _, held = hold_out(Pictures(classes=40), 0.25, seed=0)
    _, more = hold_out(Pictures(classes=41), 0.25, seed=0)
    assert len(set(held.class_names) ^ set(more.class_names)) <= 2


def test_the_fingerprint_tells_the_classes():
    rest, held = hold_out(Pictures(), 0.25, seed=0)
    other, _ = hold_out(Pictures(), 0.25, seed=1)
    assert len({p.fingerprint() for p in (rest, held, other)}) == 3
    assert rest.fingerprint() == hold_out(Pictures(), 0.25, seed=0)[0].fingerprint()


def test_names_that_are_no_text():
    pictures = Pictures()
    pictures.class_names = [f"\udcff{i % 2}" for i in range(12)]  # some of them alike as well
    rest, held = hold_out(pictures, 0.5, seed=0)
    assert len(rest.class_names) == len(held.class_names) == 6


@pytest.mark.parametrize(("share", "held"), [(0.1, 1), (0.01, 0), (0.9, 11), (0.99, 12)])
def test_a_side_of_fewer_than_two_classes_is_refused(share, held):
    with pytest.raises(UserError) as error:
        hold_out(Pictures(), share, seed=0)
    assert str(error.value) == (
        f"evaluate.validation: a share of {share} of 12 training classes holds out {held} and "
        f"leaves {12 - held}; either side needs 2 or more"
    )


@pytest.mark.parametrize("images", [Images(), Images(crop=7, pad=1, mirror=True)])
def test_batches_are_cut_from_the_pixels_of_the_whole(images):
    """So that no pixel is copied that is not in a batch: the whole may be a large mapped file."""
    found = []
    for in_memory in (True, False):
        whole = Pictures(in_memory)
        part = ClassSubset(whole, [2, 3, 7, 11])
        assert not hasattr(part, "images")
        sampler = MPerClassSampler(part.labels, 4, 2, seed=0)
        training = list(training_batches(part, images, sampler, seed=0, start=0, stop=3))
        for batch in training:
            assert torch.equal(batch.labels, torch.from_numpy(part.labels[batch.indices]))
        measured = torch.cat(list(evaluation_batches(part, images, batch_size=6)))
        assert torch.equal(measured, centre_crops(whole, images, part.indices.tolist()))
        some = centre_crops(part, images, [5, 0])
        assert torch.equal(some, measured[[5, 0]])
        found.append([*(batch.images for batch in training), measured])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
