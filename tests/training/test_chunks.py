"""Batches that are embedded in chunks have the gradients of the whole batch, for every loss."""

from __future__ import annotations

import pytest
import torch
from in_processes import Step, step_of

import zoo
from zoo.parallel.ranks import Ranks

AT_ONCE = ("ice", "margin", "proxy_nca", "tcm")  # in the fast tests too
LOSSES = [
    name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow)
    for name in zoo.names("losses")
    if not name.startswith("pml.")
]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradients_are_those_of_the_whole_batch(loss):
    whole, chunks = (
        step_of(Step(loss, double=True, settings=settings), Ranks())
        for settings in ((), ("train.chunk_size=4",))
    )
    for mine, theirs in zip(chunks, whole, strict=True):
        assert mine.keys() == theirs.keys()
        for name, expected in theirs.items():
            torch.testing.assert_close(mine[name], expected, rtol=1e-9, atol=1e-12, msg=name)
