"""Embeddings that have nearly collapsed to a point: float32 still knows the way out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo.checks import Subject, batches
from zoo.losses._shared import unit, unit_distances

SPREAD = 1e-3


def near_a_point(x, spread):
    """Rows of float32 that differ from one point by `spread` times its length."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    point = torch.randn(x.shape[1], generator=generator, dtype=torch.float64)
    rows = F.normalize(point, dim=0) + spread * noise / x.shape[1] ** 0.5
    return rows.float().double()


@pytest.mark.parametrize("name", zoo.names("losses"))
def test_the_gradient_in_float32_has_the_direction_of_that_in_float64(name):
    subject = Subject(name)
    for batch in batches.general():
        batch = batch._replace(x=near_a_point(batch.x, SPREAD))
        low, high = subject.evaluate(batch, torch.float32), subject.evaluate(batch)
        if not high.gradient.any():
            continue
        cosine = F.cosine_similarity(low.gradient.flatten(), high.gradient.flatten(), dim=0)
        assert cosine > 0.9999
        assert float(low.value) == pytest.approx(float(high.value), rel=1e-4)


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4, 1e-5])
def test_distances_have_correct_digits_at_any_spread(spread):
    """By 2 - 2 f . g, those at 1e-4 would be off by all of themselves."""
    x = near_a_point(torch.zeros(60, 64), spread)
    exact = torch.cdist(unit(x), unit(x)).square()
    f = unit(x.float())
    off_diagonal = ~torch.eye(60, dtype=torch.bool)
    error = (unit_distances(f, f).double() / exact - 1)[off_diagonal].abs().max()
    assert error < 2e-7 / spread + 1e-6
    both = unit_distances(f[:20], f[20:])
    torch.testing.assert_close(both, unit_distances(f, f)[:20, 20:], rtol=1e-4, atol=0)


def test_distances_of_other_rows_are_the_formula():
    generator = torch.Generator().manual_seed(0)
    f = unit(torch.randn(30, 8, generator=generator).double())
    f[3] = 0
    f[7] = 0
    f[4] = -f[5]
    f[6] = f[5]
    g = f[:11]
    for one, other in ((f, f), (f, g), (g, f)):
        found = unit_distances(one, other)
        torch.testing.assert_close(found, 2 - 2 * one @ other.T, atol=1e-14, rtol=0)
        assert (found >= 0).all()
