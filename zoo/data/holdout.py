"""Classes of the training split that are held back, to choose on them instead of on the test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.base import ImageDataset
from zoo.errors import UserError

_LEAST = 2  # classes on either side: one has nothing to be told from


class ClassSubset:
    """A data set of which some classes are seen, numbered anew from 0.

    It holds no pixels: where those of the whole are in memory or in a file, batches are cut from
    there, see :func:`source_of`.

    Args:
        dataset: the whole.
        classes: numbers of the classes to keep, ascending.

    Attributes:
        indices: int64 (N,), where its images are in the whole.
        labels: int64 (N,).
        class_names: the name of each class that is kept.
    """

    def __init__(self, dataset: ImageDataset, classes: Sequence[int]) -> None:
        of_whole = np.asarray(dataset.labels)
        self.dataset = dataset
        self.indices: NDArray[np.int64] = np.flatnonzero(np.isin(of_whole, classes))
        self.labels: NDArray[np.int64] = np.searchsorted(classes, of_whole[self.indices])
        self.class_names: Sequence[str] = [dataset.class_names[c] for c in classes]
        self._classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.dataset[int(self.indices[index])][0], int(self.labels[index])

    def fingerprint(self) -> str:
        """Return a digest of the whole's fingerprint and of the classes."""
        text = f"{self.dataset.fingerprint()} {list(self._classes)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def verify(self) -> list[str]:
        """Return what the whole finds wrong with its files."""
        return self.dataset.verify()


def source_of(dataset: ImageDataset, indices: Sequence[int]) -> tuple[ImageDataset, Sequence[int]]:
    """Return the data set that has the pixels of some images, and where they are in it."""
    if isinstance(dataset, ClassSubset):
        return dataset.dataset, dataset.indices[list(indices)].tolist()
    return dataset, indices


def hold_back(dataset: ImageDataset, share: float, seed: int) -> tuple[ClassSubset, ClassSubset]:
    """Divide a training split by classes, at random but always alike.

    Every seed has a division of its own, so that a choice made over several seeds does not hang on
    one. The order is that of digests of the names: a class more or less moves no other one across.

    Args:
        dataset: the training split.
        share: of its classes, to be held back.
        seed: of the run.

    Returns:
        what is left to train on, and what is held back.

    Raises:
        UserError: if one of them would have fewer than two classes, or if every class that is held
            back has a single image.
    """
    names = dataset.class_names

    def draw(number: int) -> tuple[bytes, int]:
        text = f"validation/{seed}/{names[number]}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), number

    count = round(len(names) * share)
    if min(count, len(names) - count) < _LEAST:
        raise UserError(
            f"evaluate.validation: a share of {share:g} of {len(names):,} training classes holds "
            f"back {count:,} and leaves {len(names) - count:,}; either side needs {_LEAST} or more"
        )
    order = sorted(range(len(names)), key=draw)
    held = ClassSubset(dataset, sorted(order[:count]))
    if np.bincount(held.labels).max(initial=0) < _LEAST:
        raise UserError(
            f"evaluate.validation: the {count:,} classes that are held back have one image each, "
            "of which none can be found; it takes classes of two images or more"
        )
    return ClassSubset(dataset, sorted(order[count:])), held
