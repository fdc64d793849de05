"""SoftTriple against loops, PML's with its regulariser, and centres that fall together."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SoftTripleLoss
from pytorch_metric_learning.regularizers import SparseCentersRegularizer

from zoo import UserError


def loops(x, labels, centers, scale, gamma, margin, tau):
    c = centers / centers.norm(dim=2, keepdim=True)
    terms, distances = [], []
    for row, y in zip(x, labels.tolist(), strict=True):
        e = []
        for own, of_class in enumerate(c):
            s = torch.stack([(row / row.norm()) @ w for w in of_class])
            soft = (torch.softmax(s / gamma, 0) * s).sum()
            e.append(torch.exp(scale * (soft - margin * (own == y))))
        terms.append(-torch.log(e[y] / sum(e)))
    k = len(c[0])
    for of_class in c:
        distances += [(of_class[i] - of_class[j]).norm() for i in range(k) for j in range(i)]
    return sum(terms) / len(terms) + tau * sum(distances) / (len(c) * k * (k - 1))


@pytest.mark.parametrize("tau", [0.0, 0.2])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, tau):
    x, labels = make_batch([3, 1, 4], dim=8)
    sizes = {"num_classes": 5, "embedding_size": 8, "centers_per_class": 3}
    mine = build_loss("soft_triple", **sizes, margin=0.1, tau=tau).double()
    centers = mine.centers.detach()
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, centers, 20, 0.1, 0.1, tau), x), 1e-12)
    regulariser = SparseCentersRegularizer(5, 3) if tau else None
    theirs = SoftTripleLoss(
        **sizes, margin=0.1, weight_regularizer=regulariser, weight_reg_weight=tau
    ).double()
    theirs.fc.data = centers.flatten(0, 1).T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)
    mine(x, labels).backward()
    _, wanted = derive(lambda c: loops(x, labels, c, 20, 0.1, 0.1, tau), centers)
    torch.testing.assert_close(mine.centers.grad, wanted)


def test_centres_that_are_one_have_a_gradient(build_loss, make_batch):
    x, labels = make_batch([3, 3], dim=4)
    loss = build_loss("soft_triple").double()
    loss.centers.data[:] = loss.centers.data[:, :1].clone()
    loss(x, labels).backward()
    assert loss.centers.grad.isfinite().all()


def test_no_centres(build_loss):
    with pytest.raises(UserError, match="centers_per_class must be at least 1, not 0"):
        build_loss("soft_triple", centers_per_class=0)
