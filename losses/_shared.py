"""The base class of the zoo's losses: PML's calling convention, in full precision."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from zoo.errors import UserError
from zoo.support.precision import full_float32, upcast

from ._inputs import as_int64, check


class Loss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss of the zoo: the subclass writes only :meth:`value`.

    It is called like the losses of pytorch-metric-learning, and takes what PML's miners return.
    Inputs in half precision or under autocast are computed in float32, inputs in float64 in
    float64. A batch with nothing to learn from gives 0, with a graph; a batch with a NaN or an
    infinity gives NaN, so that training notices it.

    Class attributes describe it to the tables and ``zoo.checks``.

    Attributes:
        paper: authors, year and title.
        related: names of components that a reader may want to see next, "nca, ntxent".
        kind: what it uses: pairs, triplets, whole lists, one proxy per class, a classifier's
            weights, or a clustering.
        cost: time in N, the images of a batch, and C, the classes of the data set.
        sampler: the sampler of the paper's batches.
        gallery: whether ``ref_emb`` has a meaning.
        mined: whether ``indices_tuple`` has a meaning.
        normalises: whether it ignores the lengths of the embeddings.
        expected_failures: checks that it cannot pass by its definition, and why.
        check_arguments: values for the checks of arguments without a default.
    """

    paper: ClassVar[str] = ""
    related: ClassVar[str] = ""
    kind: ClassVar[Literal["pair", "triplet", "list", "proxy", "classifier", "clustering"]] = "pair"
    cost: ClassVar[str] = "N²"
    sampler: ClassVar[str] = "m_per_class"
    gallery: ClassVar[bool] = True
    mined: ClassVar[bool] = True
    normalises: ClassVar[bool] = True
    expected_failures: ClassVar[Mapping[str, str]] = {}
    check_arguments: ClassVar[Mapping[str, Any]] = {}

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar with a graph.

        Args:
            embeddings: (N, d) raw network outputs.
            labels: (N,) integers, any values.
            indices_tuple: the pairs or triplets to use, as returned by a miner of PML.
            ref_emb: (M, d) gallery; by default the batch itself, self-pairs left out. With other
                ``ref_labels``, the same tensor is a gallery like any other.
            ref_labels: (M,) labels of the gallery.

        Raises:
            UserError: arguments that do not match: shapes, types, a gallery without labels.
        """
        if ref_emb is embeddings and ref_labels is labels:  # as some of PML's code calls it
            ref_emb = ref_labels = None
        check(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        self._check_meaning(indices_tuple, ref_emb)
        labels, ref_labels = as_int64(labels), as_int64(ref_labels)
        if indices_tuple is not None:
            indices_tuple = tuple(part.to(embeddings.device).long() for part in indices_tuple)
        with full_float32(embeddings.device):
            x, one = only_finite(upcast(embeddings))
            gallery = None
            if ref_emb is not None:
                gallery, one_too = only_finite(ref_emb.to(x.dtype))
                gallery = gallery.view_as(gallery)  # another object than x, even if it is x
                one = one * one_too
            if not len(x) or (gallery is not None and not len(gallery)):
                return x[:0].sum() * one
            loss: Tensor = super().forward(x, labels, indices_tuple, gallery, ref_labels)
        return loss * one

    def _check_meaning(self, indices_tuple: object, ref_emb: object) -> None:
        name = type(self).__name__
        if ref_emb is not None and not self.gallery:
            raise UserError(f"{name} is defined on a batch: ref_emb has no meaning for it")
        if indices_tuple is not None and not self.mined:
            raise UserError(f"{name} uses a whole batch: it cannot take mined pairs")

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, Any]:
        """Wrap :meth:`value` the way PML's reducers expect it."""
        value = self.value(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}

    @abstractmethod
    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the scalar loss; ``ref_emb is embeddings`` when there is no gallery."""


def only_finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with 0 in place of numbers that are not finite, and 1, or NaN if there were any.

    Multiplied by the latter, a loss is unchanged or NaN. The formulas cannot do this: a mask, a
    maximum or a histogram hides a NaN or fails on it. No GPU has to wait for this; on a CPU, one
    sum shows in nearly all cases that there is nothing to do.
    """
    if x.device.type == "cpu" and x.detach().sum().isfinite():
        return x, x.new_ones(())
    fine = x.isfinite()
    return x.masked_fill(~fine, 0), torch.where(fine.all(), x.new_ones(()), torch.nan)


class Mean(NamedTuple):
    """A mean whose parts can be computed apart: the total of what counts, and how many count."""

    total: Tensor
    number: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Mean:
        """Return the mean of all values."""
        return cls(values.sum(), values.new_full((), values.numel()))

    @classmethod
    def where(cls, valid: Tensor, values: Tensor, times: Tensor | None = None) -> Mean:
        """Return the mean of the valid values; without any it is 0, with a graph.

        ``times`` says how often each counts; by default once.
        """
        values = torch.where(valid, values, 0)
        if times is None:
            return cls(values.sum(), valid.sum().to(values.dtype))
        return cls((values * times).sum(), (valid * times).sum())


class AnchorLoss(Loss):
    """A loss that is a sum of means over anchors, so that several processes can share them.

    The subclass writes only :meth:`terms`.
    """

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the sum of the means."""
        pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        means = self.terms(embeddings, ref_emb, pairs)
        return torch.stack([total / number.clamp_min(1) for total, number in means]).sum()

    def part(self, embeddings: Tensor, labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return what some anchors add to the loss of a batch: totals (k,) and counts (k,).

        Added up over parts that have each anchor once, they are the loss of the batch,
        ``(totals / counts).sum()``, where a count of 0 divides by 1.
        """
        with full_float32(embeddings.device):
            x, one = only_finite(upcast(embeddings))
            labels = labels.long()
            same = labels[rows, None] == labels
            positive = same.clone()
            positive.diagonal(rows.start).fill_(False)
            totals, counts = zip(*self.terms(x[rows], x, Masks(positive, ~same)), strict=True)
            return torch.stack(totals) * one, torch.stack(counts)

    @abstractmethod
    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the means over anchors (n, d); ``gallery is anchors`` if there is no other."""


class OfImages:
    """Mixed into a loss that is a mean over the images, each compared only with its own weights."""

    def part(self: Any, embeddings: Tensor, labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return what some images add to the loss of a batch, see :meth:`AnchorLoss.part`."""
        mine = embeddings[rows]
        count = upcast(mine).new_full((1,), len(mine))
        return self(mine, labels[rows]).reshape(1) * count, count


class Unit(NamedTuple):
    """Rows on the unit sphere, f (N, d), and the norms (N, 1) that they had."""

    f: Tensor
    norm: Tensor

    def pull_back(self, grad: Tensor, share: Tensor) -> Tensor:
        """Return ``share`` times the gradient wrt the raw rows, ``(G - (G . f) f) / ||x||``."""
        radial = torch.linalg.vecdot(grad, self.f).unsqueeze(1)
        return torch.addcmul(grad, radial, self.f, value=-1).mul_(share / self.norm)


def unit_sphere(x: Tensor, eps: float = 1e-12) -> Unit:
    """Return the rows of x on the unit sphere; a zero row stays zero and gets no gradient.

    Each row is divided by its largest entry first, so that a norm beyond 1e19 does not overflow
    when it is squared in float32.
    """
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    f = x / largest.masked_fill_(largest < eps, torch.inf)
    norm = torch.linalg.vector_norm(f, dim=1, keepdim=True).clamp_min_(eps)
    return Unit(f.div_(norm), norm * largest)


def unit(x: Tensor) -> Tensor:
    """Return the rows of x on the unit sphere, differentiable; zero rows stay, without gradient.

    Like :func:`unit_sphere`, it divides by the largest entry first. A row with a NaN becomes NaN.
    """
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    fine = ~(largest <= 1e-12)
    scaled = torch.where(fine, x / torch.where(fine, largest, 1), 0)
    norm: Tensor = torch.linalg.vector_norm(torch.where(fine, scaled, 1), dim=1, keepdim=True)
    return scaled / norm


def safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root of positive numbers, else 0 with gradient 0."""
    fine = x > 0
    return torch.where(fine, torch.where(fine, x, 1).sqrt(), 0)


def unit_distances(f: Tensor, g: Tensor) -> Tensor:
    """Return squared Euclidean distances (N, M) of unit rows, ``2 - 2 f . g``, from 0 to 4.

    They are computed about the mean of g, on which they do not depend: if all rows are near each
    other, ``2 - 2 f . g`` is rounding in float32, at distances below 1e-3 nothing else. A row of
    zeros is at 2 from all rows, as by the formula.
    """
    origin = g.detach().mean(0)
    x = _Rows.about(origin, f)
    y = x if f is g else _Rows.about(origin, g)
    squares = x.squares[:, None] + y.squares
    return torch.addmm(squares, x.rows, y.rows.T, alpha=-2).clamp_min(0)


class _Rows(NamedTuple):
    """Rows about an origin, and the squares of their lengths; 1 is added to those of zero rows."""

    rows: Tensor
    squares: Tensor

    @classmethod
    def about(cls, origin: Tensor, f: Tensor) -> _Rows:
        rows = f - origin
        zero = f.detach().square().sum(1) < 0.5  # a unit row has 1
        return cls(rows, rows.square().sum(1) + zero)


@dataclass(frozen=True)
class Masks:
    """The positives and negatives in the gallery of each anchor: bool (N, M) each.

    It unpacks to these two. A miner may return a pair more than once, as those that draw with
    replacement do, and as the pairs of triplets are. A loss that is a mean over pairs then counts
    it as often, by ``positive_times`` and ``negative_times``; a loss that is about the set of an
    anchor's positives or negatives counts it once.

    Attributes:
        positive_times: numbers (N, M), how often each positive pair was mined, else 0; None if
            pairs were not mined, and count once.
        negative_times: likewise of the negative pairs.
    """

    positive: Tensor
    negative: Tensor
    positive_times: Tensor | None = None
    negative_times: Tensor | None = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.positive, self.negative))

    def times(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return how often each positive and each negative pair counts, numbers (N, M)."""
        if self.positive_times is None or self.negative_times is None:
            return self.positive.to(dtype), self.negative.to(dtype)
        return self.positive_times, self.negative_times


def masks(
    embeddings: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None,
    ref_emb: Tensor,
    ref_labels: Tensor | None,
) -> Masks:
    """Return the pairs that a loss uses: all but an image with itself, or those mined.

    A mined triplet (a, p, n) stands for the pairs (a, p) and (a, n), so that a pair of several
    triplets was mined several times.
    """
    if indices_tuple is not None:
        a1, p, a2, n = (*indices_tuple[:2], *indices_tuple[-2:])
        if len(indices_tuple) == 3:
            a2 = a1
        none = embeddings.new_zeros(len(embeddings), len(ref_emb))
        one = none.new_ones(())
        positive_times = none.index_put((a1, p), one, accumulate=True)
        negative_times = none.index_put((a2, n), one, accumulate=True)
        return Masks(positive_times > 0, negative_times > 0, positive_times, negative_times)
    assert labels is not None
    assert ref_labels is not None
    same = labels[:, None] == ref_labels
    positive = same.clone()
    if ref_emb is embeddings:
        positive.fill_diagonal_(False)
    return Masks(positive, ~same)


def mask_of(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a mask that is true at the given places."""
    mask = torch.zeros(shape, dtype=torch.bool, device=rows.device)
    mask[rows, columns] = True
    return mask
