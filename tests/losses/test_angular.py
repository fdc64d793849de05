"""Angular loss against loops, and PML's on normalised and on other embeddings."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import AngularLoss


def loops(x, labels, alpha):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    t = math.tan(math.radians(alpha)) ** 2
    for a in range(len(y)):
        for p in range(len(y)):
            if p == a or y[p] != y[a]:
                continue
            g = [
                4 * t * (f[a] + f[p]) @ f[n] - 2 * (1 + t) * f[a] @ f[p]
                for n in range(len(y))
                if y[n] != y[a]
            ]
            terms.append(torch.log(1 + sum(map(torch.exp, g))))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("alpha", [36.0, 45.0, 55.0, 70.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, alpha):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    x = x / x.norm(dim=1, keepdim=True)
    loss = build_loss("angular", alpha=alpha)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, alpha), x), 1e-11)
    theirs = AngularLoss(alpha)

    def normalised(z):
        return theirs(z / z.norm(dim=1, keepdim=True), labels)

    same(found, derive(normalised, x), 1e-11)


def test_lengths_make_no_difference_as_they_do_to_pmls(build_loss, make_batch):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    one, three = (float(build_loss("angular")(k * x, labels)) for k in (1, 3))
    assert one == pytest.approx(three)
    assert abs(float(AngularLoss(45)(3 * x, labels)) - float(AngularLoss(45)(x, labels))) > 1


@pytest.mark.parametrize("alpha", [45.0, 70.0])
def test_float32_has_the_range_for_triangles_of_any_shape(build_loss, derive, alpha):
    """The nearest negative of the anchor lies opposite the positive, and the reverse."""
    x = torch.tensor([[1.0, 0.02], [-1, 0.01], [1, 0.03], [-1, 0.05]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 2])
    loss = build_loss("angular", alpha=alpha)
    value, gradient = derive(lambda z: loss(z, labels), x)
    low, gradient_low = derive(lambda z: loss(z, labels), x.float())
    assert float(low) == pytest.approx(float(value), rel=1e-5)
    torch.testing.assert_close(gradient_low.double(), gradient, rtol=1e-3, atol=1e-3)
