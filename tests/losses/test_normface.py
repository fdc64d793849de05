"""NormFace against loops, and PML's normalised softmax for a scale that is kept."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss


def loops(x, labels, weight, scale):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        e = [torch.exp(scale * (row / row.norm()) @ (w / w.norm())) for w in weight]
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("scale", [1.0, 20.0, 64.0])
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, scale):
    x, labels = make_batch([3, 1, 4], dim=8)
    mine = build_loss("normface", num_classes=5, embedding_size=8, scale=scale).double()
    found = derive(lambda z: mine(z, labels), x)
    weight = mine.weight.detach()
    same(found, derive(lambda z: loops(z, labels, weight, scale), x), 1e-12)
    theirs = NormalizedSoftmaxLoss(5, 8, temperature=1 / scale).double()
    theirs.W.data = weight.T.clone()
    same(found, derive(lambda z: theirs(z, labels), x), 1e-12)


def test_the_scale_is_learned_or_kept(build_loss, make_batch, derive):
    x, labels = make_batch([3, 1, 4], dim=8)
    learned = build_loss("normface", num_classes=3, embedding_size=8).double()
    learned(x, labels).backward()
    s = torch.tensor(20.0).double()
    _, wanted = derive(lambda s: loops(x, labels, learned.weight.detach(), s), s)
    torch.testing.assert_close(learned.scale.grad, wanted)
    kept = build_loss("normface", num_classes=3, embedding_size=8, learn_scale=False)
    kept.load_state_dict(learned.state_dict())
    assert [name for name, p in kept.named_parameters() if p.requires_grad] == ["weight"]


def test_the_bound_of_the_paper(build_loss):
    """Classes at the corners of a regular simplex, embeddings on their weights: none is lower."""
    corners = torch.eye(6).double() - 1 / 6
    loss = build_loss("normface", num_classes=6, embedding_size=6, scale=4.0).double()
    loss.weight.data = corners
    bound = math.log(1 + 5 * math.exp(-4 * 6 / 5))
    assert float(loss(corners, torch.arange(6)).detach()) == pytest.approx(bound)
