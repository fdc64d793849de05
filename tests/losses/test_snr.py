"""Contrastive loss on signal-to-noise ratios against loops, PML's, and where that divides by 0."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.distances import SNRDistance
from pytorch_metric_learning.losses import ContrastiveLoss


def loops(x, labels, margin, weight):
    y, pulled, pushed = labels.tolist(), [], []
    for a in range(len(y)):
        for b in range(len(y)):
            if a != b:
                d = torch.var(x[b] - x[a]) / torch.var(x[a])
                if y[a] == y[b]:
                    pulled.append(d)
                elif d < margin:
                    pushed.append(margin - d)
    regulariser = sum(row.sum().abs() for row in x) / len(y)
    return sum(pulled) / len(pulled) + sum(pushed) / len(pushed) + weight * regulariser


@pytest.mark.parametrize(("margin", "weight"), [(1.0, 0.0), (3.0, 0.005), (1.0, 1.0)])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, margin, weight):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    loss = build_loss("snr", margin=margin, zero_mean_weight=weight)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, margin, weight), x), 1e-12)
    if not weight:
        theirs = ContrastiveLoss(neg_margin=margin, distance=SNRDistance())
        distance = SNRDistance(normalize_embeddings=False)
        plain = ContrastiveLoss(neg_margin=margin, distance=distance)
        same(found, derive(lambda z: plain(z, labels), x), 1e-12)
        assert abs(float(theirs(x, labels)) - float(found[0])) > 1e-3  # it normalises by default


def test_an_anchor_of_equal_entries_is_left_out(build_loss, derive):
    x = torch.tensor([[1.0, 1, 1], [1, 2, 4], [1, 3, 4], [5, 1, 0]])
    labels = torch.tensor([0, 0, 0, 1])
    loss = build_loss("snr", zero_mean_weight=0.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert 0 < value < 10
    assert gradient.isfinite().all()
    theirs = ContrastiveLoss(distance=SNRDistance(normalize_embeddings=False))
    value, gradient = derive(lambda z: theirs(z, labels), x)
    assert not (value.isfinite() and gradient.isfinite().all())


def test_the_last_term_is_left_without_pairs(build_loss):
    x, labels = torch.tensor([[1.0, 2, -5]]), torch.tensor([0])
    assert float(build_loss("snr", zero_mean_weight=0.1)(x, labels)) == pytest.approx(0.2)


@pytest.mark.parametrize("length", [1e-25, 1e-20, 1e-19, 1e-12, 1e6, 1e19, 1e30])
def test_a_common_factor_changes_nothing_in_float32_either(
    build_loss, make_batch, derive, same, length
):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    loss = build_loss("snr", zero_mean_weight=0.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    found, scaled = derive(lambda z: loss(z, labels), (length * x).float())
    same((found.double(), length * scaled.double()), (value, gradient), 1e-4)


def test_a_tiny_image_among_others_is_left_out(build_loss, make_batch, derive):
    x, labels = make_batch([4, 4], dim=8)
    loss = build_loss("snr", zero_mean_weight=0.0)
    for factor in (0.0, 1e-7, 1e-20, 1e-30):
        tiny = x.float()
        tiny[2] *= factor
        value, gradient = derive(lambda z: loss(z, labels), tiny)
        assert value < 100
        assert gradient.isfinite().all()
