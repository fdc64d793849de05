"""The lifted structured loss against loops and PML."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import LiftedStructureLoss
from pytorch_metric_learning.reducers import MeanReducer

BATCHES = {"6x4": [4] * 6, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def loops(x, labels, margin):
    n, y = len(x), labels.tolist()
    total, pairs = x.sum() * 0, 0
    for i in range(n):
        for j in range(i + 1, n):
            if y[i] != y[j]:
                continue
            exponents = [margin - (x[i] - x[k]).norm() for k in range(n) if y[k] != y[i]]
            exponents += [margin - (x[j] - x[k]).norm() for k in range(n) if y[k] != y[j]]
            if exponents:
                value = torch.stack(exponents).logsumexp(0) + (x[i] - x[j]).norm()
                total, pairs = total + value.clamp_min(0) ** 2, pairs + 1
    return total / (2 * pairs)


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("margin", [0.0, 1.0, 5.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, margin):
    x, labels = make_batch(sizes, length=0.3)
    loss = build_loss("lifted_struct", margin=margin)
    one = derive(lambda z: loss(z, labels), x)
    other = derive(lambda z: loops(z, labels, margin), x)
    same(one, other, 1e-13)


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
def test_equals_pmls_with_raw_distances(build_loss, make_batch, derive, same, sizes):
    x, labels = make_batch(sizes, length=0.3)
    theirs = LiftedStructureLoss(
        neg_margin=1,
        pos_margin=0,
        distance=LpDistance(normalize_embeddings=False),
        reducer=MeanReducer(),
    )
    mine = build_loss("lifted_struct")
    same(derive(lambda z: mine(z, labels), x), derive(lambda z: theirs(z, labels), x), 1e-13)


def test_a_gallery(build_loss, make_batch):
    """Queries against a gallery: J of the definition, with the negatives of either side."""
    x, labels = make_batch([3] * 4, length=0.3)
    queries, gallery, y, z = x[:5], x[5:], labels[:5], labels[5:]
    total, pairs = 0.0, 0
    for i in range(5):
        for j in range(7):
            if y[i] == z[j]:
                terms = [
                    1 - float((queries[i] - gallery[k]).norm()) for k in range(7) if z[k] != y[i]
                ]
                terms += [
                    1 - float((queries[k] - gallery[j]).norm()) for k in range(5) if y[k] != z[j]
                ]
                value = math.log(sum(map(math.exp, terms)))
                total += max(0.0, value + float((queries[i] - gallery[j]).norm())) ** 2
                pairs += 1
    found = build_loss("lifted_struct")(queries, y, ref_emb=gallery, ref_labels=z)
    assert float(found) == pytest.approx(total / (2 * pairs), abs=1e-12)


def test_duplicates_are_at_distance_zero_in_float32(build_loss):
    """By products, |x|² + |y|² - 2 x.y, they would be 0.1 apart here."""
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) * 100
    x[1::2] = x[::2]
    labels = torch.arange(40) // 2
    far = build_loss("lifted_struct")(x, labels)
    assert far == 0  # all negatives are far beyond the margin
