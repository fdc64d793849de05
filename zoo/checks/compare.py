"""Comparisons of value and gradient with what they should be, shown on the smallest batch.

Each function raises :class:`CheckFailedError` with the numbers that it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo.checks.batches import TrialBatch, generator, shrink
from zoo.checks.subject import CheckFailedError, LossCall, Subject, call

FLOATS = (torch.float32, torch.float64)
_DEAD = 1e-6  # norm of a gradient that hardly moves embeddings of length 1
_STEP = 1e-6  # of central differences; their error is of the order of its square


def hold(test: Callable[[TrialBatch], None], batch: TrialBatch) -> None:
    """Run a test on a batch; if it fails, raise the failure of the smallest batch like it."""
    found = _failure(test, batch)
    if found is None:
        return
    kind = found.kind

    def same(smaller: TrialBatch) -> bool:
        failure = _failure(test, smaller)
        return failure is not None and failure.kind == kind

    smallest = shrink(batch, same)
    shown = _failure(test, smallest) or found
    raise CheckFailedError(f"{shown}\n{smallest}", kind, shown.fault) from shown.__cause__


def _failure(test: Callable[[TrialBatch], None], batch: TrialBatch) -> CheckFailedError | None:
    try:
        test(batch)
    except CheckFailedError as error:
        return error
    return None


@contextmanager
def prefixed(when: str) -> Iterator[None]:
    """Put the circumstances in front of the message of a failure."""
    try:
        yield
    except CheckFailedError as error:
        raise CheckFailedError(f"{when} {error}", error.kind, error.fault) from error.__cause__


def require_same(
    got: LossCall, wanted: LossCall, rtol: float = 1e-5, gradient: float = 1e-3
) -> None:
    """Require the wanted value and gradient, up to relative errors ``rtol`` and ``gradient``."""
    require_finite(wanted)
    value, wanted_value = float(got.value), float(wanted.value)
    if not abs(value - wanted_value) <= rtol * (1 + abs(wanted_value)):
        raise CheckFailedError(f"the value is {value:.6g} instead of {wanted_value:.6g}")
    error, size = float((got.gradient - wanted.gradient).norm()), float(wanted.gradient.norm())
    if not error <= gradient * size + 1e-6 * (1 + abs(wanted_value)):
        raise CheckFailedError(
            f"the gradient, of norm {size:.4g}, is off by {error:.4g}", "gradient"
        )


def hold_finite(subject: Subject, batch: TrialBatch) -> None:
    """Require a finite value and gradient, in float32 and float64."""

    def finite(smaller: TrialBatch) -> None:
        for dtype in FLOATS:
            with prefixed(f"in {str(dtype).removeprefix('torch.')}"):
                require_finite(subject.evaluate(smaller, dtype))

    hold(finite, batch)


def require_finite(result: LossCall) -> None:
    """Require a finite value and gradients."""
    if not result.value.isfinite():
        raise CheckFailedError(f"the value is {float(result.value)}", "infinite value")
    bad = int((~result.gradient.isfinite()).any(1).sum())
    if bad:
        raise CheckFailedError(
            f"the value is {float(result.value):.6g}, but the gradient of {bad} of "
            f"{len(result.gradient)} images is NaN or infinite",
            "infinite gradient",
        )
    for name, gradient in result.of_parameters.items():
        if not gradient.isfinite().all():
            raise CheckFailedError(f"the gradient of {name} is NaN or infinite", name)


def require_gradient(
    gradient: Tensor, true: tuple[Tensor, str, float], loosest: float = 0.0
) -> None:
    """Require a gradient to be the true one in every entry; report the worst entry."""
    wanted, source, rtol = true
    error = (gradient - wanted).abs()
    size = max(float(wanted.abs().max()), float(gradient.abs().max()))
    if float(error.max()) <= max(rtol, loosest) * size + (1e-7 if rtol > 1e-7 else 1e-12):
        return
    image, dimension = divmod(int(error.nan_to_num(torch.inf).argmax()), gradient.shape[1])
    raise CheckFailedError(
        f"at image {image}, dimension {dimension} (from 0) the gradient is "
        f"{float(gradient[image, dimension]):.6g}, {source} {float(wanted[image, dimension]):.6g}",
        "gradient",
    )


def true_gradient(subject: Subject, batch: TrialBatch) -> tuple[Tensor, str, float]:
    """Return the true gradient, where it is from, and the relative tolerance."""
    reference = subject.reference_gradient(batch)
    if reference is not None:
        return reference, "its reference_gradient says", 1e-8
    numeric = torch.zeros_like(batch.x)
    for i in range(batch.x.numel()):
        sides = []
        for step in (_STEP, -_STEP):
            x = batch.x.clone()
            x.view(-1)[i] += step
            sides.append(subject.value(batch._replace(x=x)))
        numeric.view(-1)[i] = (sides[0] - sides[1]) / (2 * _STEP)
    return numeric, "central differences say", 1e-4


def require_slope_of_weights(subject: Subject, batch: TrialBatch, result: LossCall) -> None:
    """Require the gradient of a loss's own weights to match central differences."""
    random = generator(9)
    directions = {
        name: torch.randn(gradient.shape, generator=random, dtype=torch.float64)
        for name, gradient in result.of_parameters.items()
    }
    slope = sum(float((g * directions[name]).sum()) for name, g in result.of_parameters.items())
    sides = []
    for step in (_STEP, -_STEP):
        loss = subject.build().double()
        with torch.no_grad():
            for name, parameter in loss.named_parameters():
                if name in directions:
                    parameter.add_(directions[name], alpha=step)
            sides.append(float(call(loss, batch.x, batch.y)))
    numeric = (sides[0] - sides[1]) / (2 * _STEP)
    if not abs(slope - numeric) <= 1e-4 * abs(numeric) + 1e-7 * (1 + abs(sides[0])):
        raise CheckFailedError(
            f"along a random direction of its weights the gradient is {slope:.6g}, central "
            f"differences say {numeric:.6g}",
            "weights",
        )


def require_alive(
    subject: Subject, batch: TrialBatch, weights: Mapping[str, Any], images: slice, what: str
) -> None:
    """Require images to have a gradient in float32, equal to that in float64."""

    def alive(smaller: TrialBatch) -> None:
        low, high = (
            subject.evaluate(smaller, dtype, with_weights(subject, weights).to(dtype))
            for dtype in FLOATS
        )
        require_finite(high)
        norm, wanted = (float(r.gradient[images].norm()) for r in (low, high))
        error = float((low.gradient - high.gradient)[images].norm())
        if not norm > _DEAD or not error <= 0.01 * wanted:
            raise CheckFailedError(
                f"{what}; in float32 the value is {float(low.value):.6g} and the gradient has norm "
                f"{norm:.4g}, in float64 {float(high.value):.6g} and {wanted:.4g}",
                "gradient" if wanted > _DEAD else "dead",
            )

    found = _failure(alive, batch)
    if found is not None and found.kind == "gradient" and images == slice(None):
        hold(alive, batch)
    hold_whole(alive, batch)  # a smaller batch might have no gradient for a good reason


def hold_whole(test: Callable[[TrialBatch], None], batch: TrialBatch) -> None:
    """Run a test on a batch; if it fails, add the whole batch to the message."""
    failure = _failure(test, batch)
    if failure is not None:
        message = f"{failure}\n{batch}"
        raise CheckFailedError(message, failure.kind, failure.fault) from failure.__cause__


def with_weights(subject: Subject, weights: Mapping[str, Any]) -> nn.Module:
    """Return a new loss with the given state."""
    loss = subject.build()
    if weights:
        loss.load_state_dict(weights)
    return loss


def trained_weights(subject: Subject, batch: TrialBatch, steps: int = 100) -> Mapping[str, Any]:
    """Return the state of a loss after training its own weights on a batch; {} if it has none."""
    loss = subject.build()
    if not any(True for _ in loss.parameters()):
        return {}
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    for _ in range(steps):
        subject.evaluate(batch, torch.float32, loss)
        optimizer.step()
    return loss.state_dict()
