"""Checks of numbers: gradients, precision, extreme embeddings and unusual batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.checks import batches, compare
from zoo.checks.batches import CLASSES, DIMENSIONS, TrialBatch
from zoo.checks.compare import hold, hold_finite, prefixed, require_same
from zoo.checks.subject import CheckFailedError, Subject, call

# ---- gradients and precision


def check_gradcheck(subject: Subject) -> None:
    """In float64 the gradient is the derivative of the value, for embeddings and own weights.

    Otherwise training does not minimise the formula. If the loss has a ``reference_gradient``, the
    gradient has to equal that instead.
    """

    def gradient_is_right(batch: TrialBatch) -> None:
        result = subject.evaluate(batch)
        compare.require_finite(result)
        compare.require_gradient(result.gradient, compare.true_gradient(subject, batch))
        if result.of_parameters:
            compare.require_slope_of_weights(subject, batch, result)

    for batch in batches.general():
        hold(gradient_is_right, batch)


def check_float32(subject: Subject) -> None:
    """In float32, which training uses, value and gradient are close to those in float64.

    It finds cancellation: 1 - p with p near 1, or a distance as the root of a difference.
    """

    def float32_is_near(batch: TrialBatch) -> None:
        with prefixed("in float32"):
            low = subject.evaluate(batch, torch.float32)
            require_same(low, subject.evaluate(batch), rtol=1e-4)
            compare.require_gradient(low.gradient, compare.true_gradient(subject, batch), 1e-3)

    for batch in batches.general():
        hold(float32_is_near, batch._replace(x=batch.x.float().double()))


def check_half_precision(subject: Subject) -> None:
    """Embeddings in bfloat16 and float16 give nearly the result of the same numbers in float32.

    In float16 an exponential overflows at 12, and differences of 0.0001 near 1 are lost.
    """

    def half_is_near(batch: TrialBatch) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            rounded = batch._replace(x=batch.x.to(dtype).double())
            wanted = subject.evaluate(rounded, torch.float32)
            with prefixed(f"in {str(dtype).removeprefix('torch.')}, not float32,"):
                require_same(subject.evaluate(rounded, dtype), wanted, rtol=0.02, gradient=0.1)

    for batch in batches.general():
        hold(half_is_near, batch)


def check_autocast(subject: Subject) -> None:
    """Under autocast, which computes products in bfloat16, the result is nearly the same."""

    def autocast_is_near(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch, torch.float32)
        with prefixed("under autocast"):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                got = subject.evaluate(batch, torch.float32)
            require_same(got, wanted, rtol=0.02, gradient=0.1)

    for batch in batches.general():
        hold(autocast_is_near, batch)


def check_large_gaps(subject: Subject) -> None:
    """The worst possible pair still has its gradient, in float32 as in float64.

    The value of ``log(p + tiny)`` is capped in float32, near 87 or below, and its gradient is 0
    from there on; at scale 64 logits differ by up to 128. Then nothing is learned from the very
    worst pairs. The check compares value and gradient in float32 with those in float64.
    """
    for norm in (1.0,) if subject.traits.normalises else (1.0, 30.0):
        what = "every positive pair is violated, by cosines of about -0.96 to 0.96"
        compare.require_alive(subject, batches.crossed(norm), {}, slice(None), what)
        separated, misplaced = batches.misplaced(norm)
        weights = compare.trained_weights(subject, separated)
        what = "the first image is violated, by cosines of about -0.7 to 0.7"
        compare.require_alive(subject, misplaced, weights, slice(1), what)


# ---- extreme embeddings: value and gradient have to be finite


def check_collapsed(subject: Subject) -> None:
    """Value and gradient are finite if all embeddings are equal, as after too large a step."""
    batch = batches.clusters(3, 4)
    for x in (torch.ones_like(batch.x), batch.x[:1].expand_as(batch.x)):
        hold_finite(subject, batch._replace(x=x))


def check_antipodal(subject: Subject) -> None:
    """Value and gradient are finite if all cosines are 1 or -1, in classes and between them."""
    y = torch.arange(12) // 4
    for sign in (torch.arange(12) % 2, y % 2):
        for direction in (torch.eye(DIMENSIONS)[0], torch.linspace(-1, 2, DIMENSIONS)):
            x = (1.0 - 2.0 * sign)[:, None] * direction
            hold_finite(subject, TrialBatch(x.double(), y))


def check_perfect(subject: Subject) -> None:
    """Value and gradient are finite if every class is a single point: all distances are 0.

    The root of 0 and the angle of cosine 1 have no derivative; a histogram of cosines ends at 1.
    """
    y = torch.arange(12) // 3
    hold_finite(subject, TrialBatch(torch.eye(DIMENSIONS).double()[y], y))
    hold_finite(subject, TrialBatch(batches.clusters(6, 1, seed=7).x[y], y))


def check_duplicates(subject: Subject) -> None:
    """Value and gradient are finite if an image is in the batch twice, even with two labels.

    Samplers that draw with replacement give such batches.
    """
    batch = batches.clusters(3, 4, seed=8)
    places = [(batch.y == c).nonzero().flatten().tolist() for c in range(3)]
    x = batch.x.clone()
    for first, second, *_ in places:
        x[second] = x[first]
    hold_finite(subject, batch._replace(x=x))
    x[places[0][0]] = x[places[1][0]]
    hold_finite(subject, batch._replace(x=x))


def check_huge_norms(subject: Subject) -> None:
    """Value and gradient are finite for embeddings of length 1e6, and 1e30 if it normalises.

    The square of 1e30 overflows float32.
    """
    for norm in (1e6, 1e30) if subject.traits.normalises else (1e6,):
        hold_finite(subject, batches.clusters(3, 4, norm=norm))


def check_zero_rows(subject: Subject) -> None:
    """Value and gradient are finite if embeddings are zero, as after a dead ReLU."""
    batch = batches.clusters(3, 4)
    some = batch.x.clone()
    some[[0, 5]] = 0
    for x in (some, torch.zeros_like(some)):
        hold_finite(subject, batch._replace(x=x))


def check_nan_embeddings(subject: Subject) -> None:
    """A NaN in the embeddings or the gallery gives NaN or an error, so that training stops.

    Every comparison with NaN is false. So a mask, a clamp or a maximum may hide it, and training
    continues with a network that gives only NaN.
    """
    batch = batches.clusters(3, 4)
    galleries = (False, True) if subject.takes("ref_emb") else (False,)
    for rows, which in ((slice(1), "one of the embeddings"), (slice(None), "all embeddings")):
        x = batch.x.float()
        x[rows] = torch.nan
        for of_gallery in galleries:
            where = f"{which} of the gallery" if of_gallery else which
            _require_nan(
                subject, batch._replace(x=x), batch.x.float() if of_gallery else None, where
            )


def _require_nan(subject: Subject, bad: TrialBatch, queries: Tensor | None, where: str) -> None:
    gallery: dict[str, Any] = {} if queries is None else {"ref_emb": bad.x, "ref_labels": bad.y}
    try:
        value = call(subject.build(), bad.x if queries is None else queries, bad.y, **gallery)
    except CheckFailedError as error:
        if error.__cause__ is None:
            raise
        return  # an error is as good
    if value.isfinite():
        raise CheckFailedError(f"with NaN in {where} the value is {float(value):.6g}, not NaN")


# ---- unusual batches: no exception, a finite value with a graph, a finite gradient


def check_no_positives(subject: Subject) -> None:
    """Value and gradient are finite if every image has its own class: no positives.

    A mean over no pairs is NaN. If a batch has nothing to learn from, the loss is 0, but still
    connected to the embeddings: their sum times 0, or a sum divided by ``max(1, pairs)``.
    """
    hold_finite(subject, batches.clusters(CLASSES, 1))


def check_no_negatives(subject: Subject) -> None:
    """Value and gradient are finite if all images are of one class: no negatives.

    The distance to the nearest of no negatives is infinite, and 0 times infinity is NaN.
    """
    hold_finite(subject, batches.clusters(1, 8))


def check_one_image(subject: Subject) -> None:
    """Value and gradient are finite for one image, as in the last batch of an epoch."""
    hold_finite(subject, batches.clusters(1, 1))


def check_unequal_classes(subject: Subject) -> None:
    """Value and gradient are finite if classes differ in size, and one has a single image."""
    batch = batches.clusters(4, 5)
    sizes = (5, 1, 2, 3)  # no number of classes divides the sum
    keep = [int((batch.y[:i] == c).sum()) < sizes[c] for i, c in enumerate(batch.y.tolist())]
    hold_finite(subject, batch.rows(torch.tensor(keep)))
