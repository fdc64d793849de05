"""Check of the parts in which several processes compute a loss."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from zoo.checks import batches
from zoo.checks.batches import TrialBatch
from zoo.checks.compare import hold, prefixed, require_same
from zoo.checks.outcomes import unless
from zoo.checks.subject import LossCall, Subject, blaming
from zoo.registry.calling import sum_of_parts


def _has_no_parts(subject: Subject) -> str | None:
    """Applicable only to a loss with a method ``part``."""
    return None if hasattr(subject.build(), "part") else "it has no method part"


@unless(_has_no_parts)
def check_rows(subject: Subject) -> None:
    """Its parts add up to it: processes that share the anchors compute the same loss.

    Totals, counts and gradients of ``part(embeddings, labels, rows)`` are added up over rows that
    together have every anchor once.
    """

    def parts_add_up(batch: TrialBatch) -> None:
        wanted = subject.evaluate(batch)
        for cuts in _cuts(len(batch.y)):
            with prefixed(f"in parts of {[b - a for a, b in cuts]} images"):
                require_same(_in_parts(subject, batch, cuts), wanted)
                _require_parameters(_in_parts(subject, batch, cuts), wanted)

    for batch in batches.general():
        hold(parts_add_up, batch)


def _cuts(n: int) -> list[list[tuple[int, int]]]:
    """Return ways to cut a batch into rows: equal ones, and two of which one is a single image."""
    thirds = [0, n // 3, 2 * n // 3, n]
    return [[*pairwise(ends)] for ends in (thirds, [0, 1, n]) if n > 2]


def _in_parts(subject: Subject, batch: TrialBatch, cuts: list[tuple[int, int]]) -> LossCall:
    """Return the value and the gradients that processes with these rows would add up."""
    loss: Any = subject.build().double()
    x = batch.x.clone().requires_grad_()
    with blaming("its method part"):
        parts = [loss.part(x, batch.y, slice(*cut)) for cut in cuts]
        counts = torch.stack([count.detach() for _, count in parts]).sum(0)
        value: Tensor = torch.stack([sum_of_parts(total, counts) for total, _ in parts]).sum()
    with blaming("the backward pass of its parts"):
        torch.autograd.backward(value)
    gradients = {name: p.grad.double() for name, p in loss.named_parameters() if p.grad is not None}
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return LossCall(value.detach().double(), gradient.double(), gradients)


def _require_parameters(got: LossCall, wanted: LossCall) -> None:
    """Require the same gradients of the loss's own parameters."""
    for name, gradient in wanted.of_parameters.items():
        mine = got.of_parameters.get(name, torch.zeros_like(gradient)).reshape(1, -1)
        with prefixed(f"of its parameter {name}"):
            require_same(
                got._replace(gradient=mine), wanted._replace(gradient=gradient.reshape(1, -1))
            )
