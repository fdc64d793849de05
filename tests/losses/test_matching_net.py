"""Matching networks against loops, and PML's NCA where that is right."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import NCALoss
from pytorch_metric_learning.miners import MultiSimilarityMiner

from zoo import UserError


def loops(x, labels, support, support_labels, scale, alone):
    losses = []
    for i in range(len(x)):
        own, everything = 0.0, 0.0
        for j in range(len(support)):
            if alone and i == j:
                continue
            vote = torch.exp(scale * F.cosine_similarity(x[i], support[j], dim=0))
            everything = everything + vote
            if labels[i] == support_labels[j]:
                own = own + vote
        if not isinstance(own, float):
            losses.append(-(own / everything).log())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("sizes", [[4] * 4, [2, 5, 1, 3]])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_value_and_gradient_equal_the_loops(build_loss, make_batch, derive, same, sizes, scale):
    x, labels = make_batch(sizes)
    loss = build_loss("matching_net", scale=scale)
    wanted = derive(lambda z: loops(z, labels, z, labels, scale, True), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)

    def gallery(z):
        return loss(z[:5], labels[:5], ref_emb=z[5:], ref_labels=labels[5:])

    wanted = derive(lambda z: loops(z[:5], labels[:5], z[5:], labels[5:], scale, False), x)
    same(derive(gallery, x), wanted, 1e-12)


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4)
    loss = build_loss("matching_net", scale=8.0)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_equals_pmls_nca_on_cosines(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 5)
    pml = NCALoss(softmax_scale=3.0, distance=CosineSimilarity())
    loss = build_loss("matching_net", scale=3.0)
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: pml(z, labels), x), 1e-12)


def test_the_worst_placed_image_is_still_moved(build_loss, derive):
    """Its share of 1e-87 is 0 in float32; PML leaves such out of its mean, and NaN is left."""
    x = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [1.0, 0.2], [-1.0, 0.2]])
    labels = torch.tensor([0, 0, 1, 1])
    pml = NCALoss(softmax_scale=100.0, distance=CosineSimilarity())
    loss = build_loss("matching_net", scale=100.0)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value > 100
    assert gradient.abs().max() > 1
    assert pml(x, labels).isnan()


def test_uniform_votes_and_mined_pairs(build_loss, make_batch):
    """Of equal cosines an image has 3 votes of 15 for its own class."""
    labels = torch.arange(16) % 4
    value = build_loss("matching_net")(torch.ones(16, 4), labels)
    assert float(value) == pytest.approx(math.log(15 / 3))
    x, labels = make_batch([4] * 4)
    loss = build_loss("matching_net")
    everything = MultiSimilarityMiner(epsilon=2.0)(x, labels)
    torch.testing.assert_close(loss(x, None, everything), loss(x, labels))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf])
def test_impossible_arguments(build_loss, scale):
    with pytest.raises(UserError, match="scale:? must be"):
        build_loss("matching_net", scale=scale)
