"""Margin loss against loops over triplets, and PML's."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import MarginLoss
from pytorch_metric_learning.miners import DistanceWeightedMiner

from zoo import UserError


def triplets(labels):
    y = labels.tolist()
    n = range(len(y))
    found = [(a, p, q) for a in n for p in n for q in n if a != p and y[a] == y[p] and y[a] != y[q]]
    return tuple(torch.tensor(part) for part in zip(*found, strict=True))


def loops(x, chosen, margin, beta):
    f = x / x.norm(dim=1, keepdim=True)
    hinges = []
    for a, p, n in zip(*(part.tolist() for part in chosen), strict=True):
        hinges += [margin + (f[a] - f[p]).norm() - beta, margin + beta - (f[a] - f[n]).norm()]
    active = [h for h in hinges if h > 0]
    return sum(active) / len(active)


@pytest.mark.parametrize(("margin", "beta"), [(0.2, 1.2), (0.05, 0.9)])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, margin, beta):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    mine = build_loss("margin", margin=margin, beta=beta).double()
    theirs = MarginLoss(margin, beta=beta, learn_beta=True).double()
    boundary = float(mine.beta.detach())  # 1.2 as float32 has it
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: loops(z, triplets(labels), margin, boundary), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-8)
    mine(x, labels).backward()
    theirs(x, labels).backward()
    torch.testing.assert_close(mine.beta.grad, theirs.beta.grad[0])


def test_mined_triplets_count_as_often_as_they_come(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4, 2], dim=8)
    torch.manual_seed(0)
    mined = DistanceWeightedMiner(0.5, 1.4)(x, labels)
    mined = tuple(torch.cat([part, part[:2]]) for part in mined)
    assert len(mined[0]) > 4
    mine, theirs = build_loss("margin").double(), MarginLoss().double()
    boundary = float(mine.beta.detach())
    found = derive(lambda z: mine(z, labels, mined), x)
    same(found, derive(lambda z: loops(z, mined, 0.2, boundary), x), 1e-12)
    same(found, derive(lambda z: theirs(z, labels, mined), x), 1e-8)


def test_the_boundary_is_learned_or_kept(build_loss, make_batch):
    x, labels = make_batch([3, 3])
    learned, kept = build_loss("margin"), build_loss("margin", learn_beta=False)
    learned(x, labels).backward()
    kept(x.requires_grad_(), labels).backward()
    assert learned.beta.grad != 0
    assert kept.beta.grad is None
    kept.load_state_dict(learned.state_dict())


def test_nu_draws_the_boundary_in(build_loss, make_batch):
    x, labels = make_batch([3, 3])
    plain, drawn = (float(build_loss("margin", nu=nu)(x, labels)) for nu in (0.0, 0.5))
    assert drawn == pytest.approx(plain + 0.6)
    with pytest.raises(UserError, match="nu must be 0 without learn_beta"):
        build_loss("margin", nu=0.5, learn_beta=False)
