"""Histogram loss against loops, PML's, and the cosine of 1 that one has no node for."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import HistogramLoss


def loops(x, labels, bins):
    y = labels.tolist()
    f = x / x.norm(dim=1, keepdim=True)
    n = range(len(y))
    positives = [f[a] @ f[b] for a in n for b in n if a != b and y[a] == y[b]]
    negatives = [f[a] @ f[b] for a in n for b in n if y[a] != y[b]]
    width = 2 / bins

    def histogram(cosines):
        nodes = []
        for r in range(bins + 1):
            shares = [(1 - (c - (r * width - 1)).abs() / width).clamp_min(0) for c in cosines]
            nodes.append(sum(shares) / len(cosines))
        return nodes

    of_positives, of_negatives = histogram(positives), histogram(negatives)
    return sum(of_negatives[r] * sum(of_positives[: r + 1]) for r in range(bins + 1))


@pytest.mark.parametrize("bins", [1, 7, 100])
@pytest.mark.slow
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, bins):
    x, labels = make_batch([3, 2, 4, 2], dim=4)
    mine, theirs = build_loss("histogram", n_bins=bins), HistogramLoss(n_bins=bins)
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, bins), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-6)


def test_a_cosine_of_one_is_the_end_of_the_last_interval(build_loss):
    x = torch.eye(3).repeat(2, 1)
    labels = torch.arange(3).repeat(2)
    assert float(build_loss("histogram")(x, labels)) == 0
    assert float(build_loss("histogram")(x, torch.tensor([0, 1, 2, 1, 2, 0]))) > 0.9
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        HistogramLoss(n_bins=100)(x, labels)


def test_it_is_the_probability_that_a_negative_is_more_similar(build_loss, make_batch):
    x, labels = make_batch([4] * 6, dim=4, spread=2.0)
    f = x / x.norm(dim=1, keepdim=True)
    same = labels[:, None] == labels
    cosines = f @ f.T
    positives = cosines[same & ~torch.eye(24, dtype=torch.bool)]
    probability = (cosines[~same] > positives[:, None]).double().mean()
    value = build_loss("histogram", n_bins=2000)(x, labels)
    assert float(value) == pytest.approx(float(probability), abs=0.005)
