"""Compares what a component gave with what zoo.base requires, and words what is wrong.

Each function returns the message that follows the component's name, ``"gave x; a miner gives y"``,
or None if all is well. Runs use them while they work, and so do the checks of ``zoo check``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from zoo.base import Preprocess
from zoo.support.text import counted

_TUPLE = (
    "a miner gives a tuple of int64 tensors, (anchors, positives, negatives) or "
    "(anchors, positives, anchors, negatives)"
)
_BATCH = "a sampler gives lists of whole numbers, the indices of images"
_LEVELS = "a backbone gives a tuple of feature maps, one for each of its feature_dims"
_OF_A_SPACE = ("points", "distances", "query_vectors", "gallery_vectors", "distances_of")
_OF_A_TRACKER = ("begin", "log", "end")
_ITEM = "a data set gives (PIL image of mode RGB or L, label)"


def kind_of(value: Any) -> str:
    """Describe a value in a few words: "a tensor of shape (4, 8)"."""
    if isinstance(value, Tensor | np.ndarray):
        what = "a tensor" if isinstance(value, Tensor) else "an array"
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{what} of shape {tuple(value.shape)} and type {dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)[:60]
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def module(given: Any) -> str | None:
    """Return why a loss, a miner or a backbone cannot be moved to a device and saved."""
    if not isinstance(given, torch.nn.Module):
        return f"is {kind_of(given)}, not a torch.nn.Module"
    if getattr(given, "_modules", None) is None:
        return "has an __init__ that does not begin with super().__init__(), as modules have to"
    return None


# ---- miners


def mined(given: Any, images: int | None = None, labels: Tensor | None = None) -> str | None:
    """Return what is wrong with what a miner gave.

    With the number of ``images``, the indices are checked, which makes a GPU wait; with their
    ``labels``, positives must share one and negatives must not.
    """
    fault = _form_of_mined(given, images)
    return fault if fault or labels is None else _mined_labels(given, labels)


def _form_of_mined(given: Any, images: int | None) -> str | None:
    stacked = isinstance(given, Tensor) and given.ndim == 2  # equivalent to a tuple of its rows
    if not (stacked or isinstance(given, tuple | list)) or len(given) not in (3, 4):
        return f"gave {kind_of(given)}; {_TUPLE}"
    for part in given:
        if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.ndim != 1:
            return f"gave {kind_of(part)} as one of {len(given)} parts; {_TUPLE}"
    sizes = [len(part) for part in given]
    if sizes[0] != sizes[1] or sizes[-2 if len(given) == 4 else 0] != sizes[-1]:
        return f"gave parts of {', '.join(map(str, sizes))} indices, which do not match"
    if images is None:
        return None
    worst = [int(i) for part in given if len(part) for i in (part.min(), part.max())]
    wrong = [i for i in worst if not 0 <= i < images]
    return f"gave the index {wrong[0]} for a batch of {images} images" if wrong else None


def _mined_labels(given: Sequence[Tensor], labels: Tensor) -> str | None:
    """Return which mined pair, of the right form, has the wrong labels."""
    anchors, positives, *rest = given
    others, negatives = rest if len(rest) == 2 else (anchors, *rest)
    for a, b in zip(anchors.tolist(), positives.tolist(), strict=True):
        if a == b:
            return f"gave image {a} as a positive of itself"
        if labels[a] != labels[b]:
            return f"gave images {a} and {b}, of two classes, as a positive pair"
    for a, b in zip(others.tolist(), negatives.tolist(), strict=True):
        if labels[a] == labels[b]:
            return f"gave images {a} and {b}, of one class, as a negative pair"
    return None


# ---- samplers


def batch(given: Any, images: int) -> str | None:
    """Return what is wrong with a batch that a sampler gave for a data set of so many images."""
    if not isinstance(given, list | tuple | range | np.ndarray | Tensor):
        return f"gave {kind_of(given)}; {_BATCH}"
    if not len(given):
        return "gave an empty batch"
    for index in given:
        fault = _index(index, images)
        if fault:
            return fault
    return None


def _index(index: Any, images: int) -> str | None:
    """Return what is wrong with one index."""
    number = index.item() if isinstance(index, np.generic | Tensor) and index.ndim == 0 else index
    if isinstance(number, bool) or not isinstance(number, int):
        return f"gave {kind_of(number)} as an index; {_BATCH}"
    if not 0 <= number < images:
        return f"gave the index {number} for {images:,} images, which are counted from 0"
    return None


def sampler(given: Any) -> str | None:
    """Return what a sampler lacks."""
    for method in ("__iter__", "__len__", "state_dict", "load_state_dict"):
        if not callable(getattr(given, method, None)):
            return f"has no {method}(), which a sampler needs; see zoo.base.BatchSampler"
    return None


def plain_state(state: Any, where: str = "state_dict()") -> str | None:
    """Return what a checkpoint cannot hold of a state."""
    if state is None or isinstance(state, bool | int | float | str | Tensor):
        return None
    if isinstance(state, Mapping):
        inner = [(f"{where}[{key!r}]", value) for key, value in state.items()]
    elif isinstance(state, list | tuple):
        inner = [(f"{where}[{i}]", value) for i, value in enumerate(state)]
    else:
        return f"has {kind_of(state)} in {where}; a checkpoint holds plain numbers and text"
    return next(filter(None, (plain_state(value, at) for at, value in inner)), None)


# ---- backbones


def backbone(given: Any) -> str | None:
    """Return what is wrong with the attributes of a backbone."""
    if fault := module(given):
        return fault
    if not isinstance(given.preprocess, Preprocess):
        return (
            f"says preprocess = {kind_of(given.preprocess)}; it must be a zoo.base.Preprocess, "
            "which describes the input"
        )
    dims = given.feature_dims
    fits = isinstance(dims, tuple | list) and len(dims) > 0
    if not fits or not all(isinstance(dim, int) and dim > 0 for dim in dims):
        return f"says feature_dims = {dims!r:.60}; it must be a tuple of one whole number per level"
    names = getattr(given, "level_names", dims)
    if len(names) != len(dims):
        return f"has {len(names)} level_names for {counted(len(dims), 'level')}"
    return None


def levels(given: Any, dims: Sequence[int]) -> str | None:
    """Return what is wrong with a backbone's levels: their number, type or channels."""
    if not isinstance(given, (tuple, list)):  # torch.export of torch 2.7 cannot follow a union
        return f"gave {kind_of(given)}; {_LEVELS}"
    if len(given) != len(dims):
        return f"gave {counted(len(given), 'level')}, but says feature_dims = {tuple(dims)}"
    for level, dim in zip(given, dims, strict=True):
        if not isinstance(level, Tensor) or level.ndim not in (2, 4):
            got = f"features of shape {tuple(level.shape)}" if isinstance(level, Tensor) else ""
            return f"gave {got or kind_of(level)}; a backbone gives (N, C, H, W) or (N, C)"
        if level.shape[1] != dim:
            return f"gave {level.shape[1]} channels where its feature_dims say {dim}"
    return None


# ---- spaces


def space(given: Any) -> str | None:
    """Return which method a space lacks."""
    missing = [name for name in _OF_A_SPACE if not callable(getattr(given, name, None))]
    if missing:
        return f"has no method {missing[0]}; a space has {', '.join(_OF_A_SPACE)}"
    return None


def points(given: Any, count: int) -> str | None:
    """Return what is wrong with the points of some embeddings."""
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim != 2:
        return f"gave {kind_of(given)} as points; they are a tensor of floats (N, k)"
    if len(given) != count or not given.shape[1]:
        return f"gave points of shape {tuple(given.shape)} for {counted(count, 'embedding')}"
    return None


# ---- trackers


def tracker(given: Any) -> str | None:
    """Return which method a tracker lacks."""
    missing = [name for name in _OF_A_TRACKER if not callable(getattr(given, name, None))]
    if missing:
        return f"has no method {missing[0]}; a tracker has {', '.join(_OF_A_TRACKER)}"
    return None


# ---- data sets


def dataset(given: Any) -> str | None:
    """Return what is wrong with a split, without reading an image of it."""
    for name in ("labels", "class_names", "__len__", "__getitem__", "fingerprint"):
        if not hasattr(given, name):
            return f"has no {name}, which a data set needs; see zoo.base.ImageDataset"
    labels, size = np.asarray(given.labels), len(given)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and labels.size):
        return f"has labels of shape {labels.shape} and type {labels.dtype}, not int64 (N,)"
    if len(labels) != size:
        return f"has {counted(size, 'image')} by its len(), but {counted(len(labels), 'label')}"
    classes = len(given.class_names)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        return (
            f"has the label {wrong[0]}, but {counted(classes, 'name')} in class_names; labels are "
            "indices into these"
        )
    return None


def fingerprint(given: Any) -> str | None:
    """Return what is wrong with the fingerprint of a split."""
    if isinstance(given, str) and given:
        return None
    return f"has the fingerprint {kind_of(given)}; it must be text"


def splits(train: Any, test: Any) -> str | None:
    """Return which classes two splits share."""
    shared = sorted(set(map(str, train.class_names)) & set(map(str, test.class_names)))
    if not shared:
        return None
    shown = ", ".join(map(repr, shared[:3])) + (", ..." if len(shared) > 3 else "")
    many = counted(len(shared), "class", "classes")
    return f"has {many} in both splits ({shown}); the test split must have unseen classes"


def item(given: Any) -> str | None:
    """Return what is wrong with an item of a data set."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return f"gave {kind_of(given)}; {_ITEM}"
    image = given[0]
    if not isinstance(image, Image.Image):
        return f"gave {kind_of(image)} for an image; {_ITEM}"
    return None


def mode(image: Image.Image) -> str | None:
    """Return that an image has a mode other than RGB and L, which a run converts."""
    return None if image.mode in ("RGB", "L") else f"gave an image of mode {image.mode}; {_ITEM}"
