"""SphereFace against loops through the angle, PML's, and the shape of psi."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import SphereFaceLoss

from zoo import UserError


def loops(x, labels, weight, m, softening):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = [(row / row.norm()) @ (w / w.norm()) for w in weight]
        angle = torch.acos(cosines[y])
        k = math.floor(float(angle) * m / math.pi)
        psi = (-1) ** k * torch.cos(m * angle) - 2 * k
        e = [torch.exp(row.norm() * c) for c in cosines]
        e[y] = torch.exp(row.norm() * (softening * cosines[y] + psi) / (1 + softening))
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("softening", [0.0, 5.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, margin, softening):
    x, labels = make_batch([3, 1, 4, 9], dim=3, length=1.0)
    sizes = {"num_classes": 5, "embedding_size": 3}
    mine = build_loss("sphereface", **sizes, margin=margin, softening=softening).double()
    found = derive(lambda z: mine(z, labels), x)
    weight = mine.weight.detach()
    same(found, derive(lambda z: loops(z, labels, weight, margin, softening), x), 1e-10)
    if softening:
        return
    theirs = SphereFaceLoss(5, 3, margin=margin).double()
    theirs.W.data = weight.T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-10)


def test_psi_falls_throughout_without_a_jump(build_loss):
    cosine = torch.linspace(1, -1, 10_001, dtype=torch.float64)
    psi = build_loss("sphereface")._psi(cosine)
    assert (psi.diff() < 0).all()
    assert psi.diff().abs().max() < 0.01
    assert psi[0] == 1
    assert psi[-1] == pytest.approx(-7)


def test_a_margin_beyond_sense(build_loss):
    with pytest.raises(UserError, match="margin must be from 1 to 10, not 0"):
        build_loss("sphereface", margin=0)
