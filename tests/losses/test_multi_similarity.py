"""Multi-similarity loss against loops, PML's, and the batch that one takes for empty."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner


def loops(x, labels, alpha, beta, base):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        near, far = 1.0, 1.0
        for k in range(len(y)):
            if y[k] != y[a]:
                far = far + torch.exp(beta * (f[a] @ f[k] - base))
            elif k != a:
                near = near + torch.exp(-alpha * (f[a] @ f[k] - base))
        terms.append(torch.log(torch.as_tensor(near)) / alpha + torch.log(far) / beta)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("setting", [(2.0, 50.0, 0.5), (1.0, 10.0, 1.0)])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, setting):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    alpha, beta, base = setting
    mine = build_loss("multi_similarity", alpha=alpha, beta=beta, base=base)
    theirs = MultiSimilarityLoss(*setting)
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, *setting), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)
    mined = MultiSimilarityMiner(0.1)(x, labels)
    same(
        derive(lambda z: mine(z, labels, mined), x),
        derive(lambda z: theirs(z, labels, mined), x),
        1e-12,
    )


def test_one_pair_of_either_sort_is_not_nothing(build_loss):
    x, labels = torch.tensor([[1.0, 0.2]]), torch.tensor([0])
    gallery, others = torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([0, 1])
    assert float(build_loss("multi_similarity")(x, labels, None, gallery, others)) > 0.8
    assert float(MultiSimilarityLoss()(x, labels, ref_emb=gallery, ref_labels=others)) == 0
