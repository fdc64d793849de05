"""Supervised contrastive loss against loops, PML's, and where that one jumps."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss


def loops(x, labels, temperature):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        e = {k: torch.exp(f[a] @ f[k] / temperature) for k in range(len(y)) if k != a}
        positives = [k for k in e if y[k] == y[a]]
        if positives:
            log_p = [torch.log(e[p] / sum(e.values())) for p in positives]
            terms.append(-sum(log_p) / len(positives))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, temperature):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    mine, theirs = build_loss("supcon", temperature=temperature), SupConLoss(temperature)
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, temperature), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)
    gallery, others = make_batch([2, 2, 1, 3], dim=8, seed=1)
    same(
        derive(lambda z: mine(z, labels, None, gallery, others), x),
        derive(lambda z: theirs(z, labels, None, gallery, others), x),
        1e-12,
    )


def test_a_term_that_rounds_to_zero_still_counts(build_loss):
    """Five of six pairs are perfect; of PML's mean, only the other one is left."""
    axes = torch.eye(6)
    x = torch.cat([axes, axes])
    x[0] = axes[0] + axes[1]
    labels = torch.arange(6).repeat(2)
    mine = float(build_loss("supcon", temperature=0.05)(x, labels))
    assert mine == pytest.approx(float(SupConLoss(0.05)(x.double(), labels)), rel=1e-5)
    assert float(SupConLoss(0.05)(x, labels)) > 1.5 * mine
