"""Distances to the class means of a batch, for losses with prototypes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._neighbours import log_sum_exp, mean_where, softplus
from ._shared import safe_sqrt


class ClassMeans(NamedTuple):
    """Squared Euclidean distances of N images to the class means of M gallery images.

    Attributes:
        own: (N,) to the mean of the image's own class, 0 if the gallery does not have the class.
        own_size: (N,) gallery images of the own class; in a batch, including the image itself.
        distance: (N, M) to the mean of the class of each gallery image.
        other: (N, M) bool; the columns of other classes, one column for each class.
        size: (M,) number of images of the class of each gallery image.
    """

    own: Tensor
    own_size: Tensor
    distance: Tensor
    other: Tensor
    size: Tensor


def class_means(x: Tensor, labels: Tensor, ref: Tensor, ref_labels: Tensor) -> ClassMeans:
    """Return the distances of x (N, d) to the means of the classes of ref (M, d)."""
    same = ref_labels[:, None] == ref_labels
    size = same.sum(1)
    means = same.to(ref.dtype) @ ref / size[:, None]
    first = ~same.tril(-1).any(1)  # one image represents its class
    is_own = labels[:, None] == ref_labels
    own_size = is_own.sum(1)
    own_mean = means[is_own.to(torch.uint8).argmax(1)]  # any column of the class has its mean
    own = torch.where(own_size > 0, (x - own_mean).square().sum(1), 0)
    return ClassMeans(own, own_size, squared_distances(x, means), first & ~is_own, size)


def squared_distances(x: Tensor, means: Tensor) -> Tensor:
    """Return (N, M) squared distances by a product, about an origin that reduces cancellation."""
    origin = means.detach().mean(0)  # distances do not depend on it
    x, means = x - origin, means - origin
    return torch.addmm(x.square().sum(1)[:, None] + means.square().sum(1), x, means.T, alpha=-2)


def prototypical_nll(
    x: Tensor,
    labels: Tensor,
    ref: Tensor,
    ref_labels: Tensor,
    scale: Tensor | float,
    squared: bool = True,
) -> Tensor:
    """Return the mean of -log softmax_k(-scale D(x, c_k)) at the own class.

    D is the squared Euclidean distance, or the distance itself. ``ref is x`` leaves every image out
    of the mean of its own class: its distance to the mean of the n - 1 others is n / (n - 1) times
    that to the mean of all n.
    """
    means = class_means(x, labels, ref, ref_labels)
    own, distance, least = means.own, means.distance, 1
    if ref is x:
        others = (means.own_size - 1).clamp_min(1)
        own, least = own * means.own_size.square() / others.square(), 2
    if not squared:
        own, distance = safe_sqrt(own), safe_sqrt(distance)
    rivals = log_sum_exp(-scale * distance, means.other)
    return mean_where(softplus(rivals + scale * own), means.own_size >= least)
