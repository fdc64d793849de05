"""Circle loss against loops, its gradient with constant weights, and PML's."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import CircleLoss


def loops(x, labels, m, gamma):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        near, far = [], []
        for k in range(len(y)):
            s = f[a] @ f[k]
            weigh = s.detach()
            if y[k] != y[a]:
                far.append(torch.exp(gamma * max(0, weigh + m) * (s - m)))
            elif k != a:
                near.append(torch.exp(-gamma * max(0, 1 + m - weigh) * (s - (1 - m))))
        if near and far:
            terms.append(torch.log(1 + sum(near) * sum(far)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("m", "gamma"), [(0.4, 80.0), (0.25, 256.0), (0.25, 8.0)])
def test_equals_the_loops_and_its_reference(build_loss, make_batch, derive, same, m, gamma):
    x, labels = make_batch([3, 1, 4, 2], dim=8, spread=0.5)
    loss = build_loss("circle", m=m, gamma=gamma)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, m, gamma), x), 1e-11)
    reference = loss.reference_gradient(x, labels)
    torch.testing.assert_close(found[1], reference, rtol=0, atol=1e-12)


def test_equals_pmls(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4, 2], dim=8, spread=1.0)
    found = derive(lambda z: build_loss("circle", gamma=8.0)(z, labels), x)
    same(found, derive(lambda z: CircleLoss(0.4, 8)(z, labels), x), 1e-12)


def test_one_pair_of_either_sort_is_not_nothing(build_loss):
    x, labels = torch.tensor([[1.0, 0.2]]), torch.tensor([0])
    gallery, others = torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([0, 1])
    assert float(build_loss("circle")(x, labels, None, gallery, others)) > 100
    assert float(CircleLoss()(x, labels, ref_emb=gallery, ref_labels=others)) == 0
