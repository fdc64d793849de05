"""Classes of the training split that are held out, to choose on them instead of on the test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.base import ImageDataset
from zoo.errors import UserError

_LEAST = 2  # classes on either side: a single one cannot be distinguished from others


class ClassSubset:
    """Some classes of a data set, renumbered from 0.

    ``classes`` are their numbers, ascending; ``indices`` are those of their images in the data set.
    It holds no pixels: if those of the whole data set are in memory or in a file, batches are
    cropped from there, see :func:`source_of`.
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
        """Return a digest of the whole data set's fingerprint and the classes."""
        text = f"{self.dataset.fingerprint()} {list(self._classes)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def verify(self) -> list[str]:
        """Return the problems of the whole data set's files."""
        return self.dataset.verify()


def source_of(dataset: ImageDataset, indices: Sequence[int]) -> tuple[ImageDataset, Sequence[int]]:
    """Return the data set that has the pixels of some images, and their indices in it."""
    if isinstance(dataset, ClassSubset):
        return dataset.dataset, dataset.indices[list(indices)].tolist()
    return dataset, indices


def hold_out(dataset: ImageDataset, share: float, seed: int) -> tuple[ClassSubset, ClassSubset]:
    """Divide a training split into classes to train on and a share that is held out, reproducibly.

    Each seed has its own division, so that a choice over several seeds does not depend on one. The
    order is that of digests of the names, so adding or removing a class moves no other class.

    Raises:
        UserError: if either would have fewer than two classes, or if every held-out class has a
            single image.
    """
    names = dataset.class_names

    def draw(number: int) -> tuple[bytes, int]:
        text = f"validation/{seed}/{names[number]}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), number

    count = round(len(names) * share)
    if min(count, len(names) - count) < _LEAST:
        raise UserError(
            f"evaluate.validation: a share of {share:g} of {len(names):,} training classes holds "
            f"out {count:,} and leaves {len(names) - count:,}; either side needs {_LEAST} or more"
        )
    order = sorted(range(len(names)), key=draw)
    held = ClassSubset(dataset, sorted(order[:count]))
    if np.bincount(held.labels).max(initial=0) < _LEAST:
        raise UserError(
            f"evaluate.validation: the {count:,} held-out classes have one image each, so that no "
            "image can be found by another; use classes of two images or more"
        )
    return ClassSubset(dataset, sorted(order[count:])), held
