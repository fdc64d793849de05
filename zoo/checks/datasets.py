"""Checks of data sets: images, labels and names match, in two disjoint splits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from zoo.base import Split
from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, NotApplicableError, blaming
from zoo.registry import contracts

_LOOKED_AT = 16  # images of a split


def _build(part: Part, split: Split) -> Any:
    dataset = part.build(split=split)
    require(contracts.dataset(dataset), f"in split {split}")
    return dataset


def _both(part: Part) -> tuple[Any, Any]:
    return _build(part, "train"), _build(part, "test")


def _some(dataset: Any) -> list[int]:
    """Return indices from the beginning to the end."""
    size = len(dataset)
    return sorted({int(i) for i in np.linspace(0, size - 1, min(size, _LOOKED_AT))})


def check_labels(part: Part) -> None:
    """``labels`` are whole numbers, one for each image, and indices into ``class_names``."""
    _both(part)


def check_images(part: Part) -> None:
    """An item is (PIL image of mode RGB or L, label), with the label that ``labels`` has."""
    for dataset in _both(part):
        for index in _some(dataset):
            with blaming(f"item {index}"):
                given = dataset[index]
            require(contracts.item(given) or contracts.mode(given[0]), f"for item {index}")
            if int(given[1]) != int(dataset.labels[index]):
                own = dataset.labels[index]
                require(f"gave label {given[1]} for item {index}, but its labels have {own}")


def check_repeatable(part: Part) -> None:
    """An item is always the same: augmentation is done by the pipeline."""
    for dataset in _both(part):
        index = _some(dataset)[-1]
        with blaming(f"item {index}"):
            one, other = (np.asarray(dataset[index][0]) for _ in range(2))
        if not np.array_equal(one, other):
            raise CheckFailedError(f"item {index} is another image the second time", "repeat")


def check_out_of_range(part: Part) -> None:
    """An index beyond the last image raises an ``IndexError``, so that iteration ends."""
    dataset = _build(part, "test")
    try:
        dataset[len(dataset)]
    except IndexError:
        return
    except Exception as error:
        kind = type(error).__name__
        raise CheckFailedError(
            f"index {len(dataset)} of {len(dataset)} raised {kind}", "range"
        ) from error
    raise CheckFailedError(f"index {len(dataset)} of {len(dataset)} gave an image", "range")


def check_class_names(part: Part) -> None:
    """Every class has its own name and at least one image."""
    for dataset in _both(part):
        names = [str(name) for name in dataset.class_names]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckFailedError(f"two classes are called {twice!r}", "names")
        empty = sorted(set(range(len(names))) - set(np.asarray(dataset.labels).tolist()))
        if empty:
            raise CheckFailedError(f"class {names[empty[0]]!r} has no image", "empty")


def check_splits(part: Part) -> None:
    """No class is in both splits: the test is retrieval among unseen classes."""
    require(contracts.splits(*_both(part)))


def check_two_images(part: Part) -> None:
    """In each split some class has two images; otherwise there is nothing to find."""
    for split, dataset in zip(("train", "test"), _both(part), strict=True):
        counts = np.bincount(np.asarray(dataset.labels, np.int64))
        if not (counts > 1).any():
            raise CheckFailedError(f"in split {split} no class has two images", "single")


def check_fingerprint(part: Part) -> None:
    """The fingerprint is text, the same for each object of a split, and differs between splits."""
    train, test = _both(part)
    with blaming("its fingerprint()"):
        found = [d.fingerprint() for d in (train, _build(part, "train"), test)]
    fault = next(filter(None, map(contracts.fingerprint, found)), None)
    if fault:
        raise CheckFailedError(f"it {fault}", "fingerprint")
    if found[0] != found[1]:
        raise CheckFailedError("its fingerprint changes from one object to the next", "fingerprint")
    if found[0] == found[2]:
        raise CheckFailedError("both splits have the same fingerprint", "fingerprint")


def check_pickle(part: Part) -> None:
    """It can be pickled, as worker processes require, and then gives the same items."""
    dataset = _build(part, "test")
    with blaming("pickling it"):
        other = pickle.loads(pickle.dumps(dataset))
    index = _some(dataset)[0]
    if not np.array_equal(np.asarray(dataset[index][0]), np.asarray(other[index][0])):
        raise CheckFailedError("after pickling it gives other images", "pickle")


def check_verify(part: Part) -> None:
    """``verify()`` returns a list of text and finds no error."""
    for dataset in _both(part):
        if not hasattr(dataset, "verify"):
            raise NotApplicableError("it has no verify()")
        with blaming("its verify()"):
            found = dataset.verify()
        if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
            require(f"gave {contracts.kind_of(found)} from verify(), not a list of text")
        wrong = [line for line in found if not line.startswith(("warning: ", "note: "))]
        if wrong:
            raise CheckFailedError(f"its verify() says: {wrong[0]}", "verify")


def check_cut_from_memory(part: Part) -> None:
    """If it has ``images``, they are uint8 (N, channels, H, W), and equal its items."""
    import torch

    for dataset in _both(part):
        images = getattr(dataset, "images", None)
        if not isinstance(images, torch.Tensor):
            raise NotApplicableError("it has no images in memory")
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != len(dataset):
            require(f"has images = {contracts.kind_of(images)}; they are uint8 (N, channels, H, W)")
        for index in _some(dataset):
            item = np.atleast_3d(np.asarray(dataset[index][0])).transpose(2, 0, 1)
            if not np.array_equal(item, images[index].numpy()):
                raise CheckFailedError(f"item {index} is not images[{index}]", "memory")
