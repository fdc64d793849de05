"""DRPR against the formula with a target matrix, and what it reduces to."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def loops(f, target, temperature=1.0):
    """The mean of KL(target || p) for any target matrix (N, k), in loops."""
    n, k = target.shape
    prior = [sum(target[i, c] for i in range(n)) / n for c in range(k)]
    mean = [sum(target[i, c] * f[i] for i in range(n)) / (n * prior[c]) for c in range(k)]
    total = 0.0
    for i in range(n):
        joint = [
            prior[c] * torch.exp(-(f[i] - mean[c]).square().sum() / temperature) for c in range(k)
        ]
        for c in range(k):
            if target[i, c] > 0:
                share = joint[c] / sum(joint)
                total = total + target[i, c] * (target[i, c] / share).log()
    return total / n


@pytest.mark.parametrize("sizes", [[4] * 5, [2, 5, 1, 3]])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 50.0])
def test_value_and_gradient_equal_the_loops(
    build_loss, make_batch, derive, same, sizes, temperature
):
    x, labels = make_batch(sizes, length=0.3)
    target = torch.eye(len(sizes), dtype=torch.float64)[labels]
    loss = build_loss("drpr", temperature=temperature)
    wanted = derive(lambda z: loops(z, target, temperature), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    assert wanted[1].abs().max() > 1e-6


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4, length=0.5)
    loss = build_loss("drpr")
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_of_equal_classes_it_is_the_prototypical_loss_with_itself_as_support(
    build_loss, make_batch, derive, same
):
    x, labels = make_batch([4] * 5, length=0.5)
    one, other = build_loss("drpr"), build_loss("prototypical")

    def supported(z):
        return other(z, labels, ref_emb=z.clone(), ref_labels=labels)

    same(derive(lambda z: one(z, labels), x), derive(supported, x), 1e-12)
    gallery = one(x[:7], labels[:7], ref_emb=x[7:], ref_labels=labels[7:])
    assert torch.isfinite(gallery)


def test_equal_embeddings_give_the_entropy_of_the_priors(build_loss):
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    entropy = -sum(p * math.log(p) for p in (3 / 6, 1 / 6, 2 / 6))
    assert float(build_loss("drpr")(torch.ones(6, 4), labels)) == pytest.approx(entropy)


def test_queries_of_a_class_that_the_gallery_has_not_are_left_out(build_loss, make_batch):
    x, labels = make_batch([4] * 3, length=0.5)
    ref = {"ref_emb": x + 0.1, "ref_labels": labels}
    loss = build_loss("drpr")
    wanted = loss(x, labels, **ref)
    more = loss(torch.cat([x, x[:2] + 1]), torch.cat([labels, torch.tensor([8, 9])]), **ref)
    torch.testing.assert_close(more, wanted)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf])
def test_impossible_arguments(build_loss, temperature):
    with pytest.raises(UserError, match="temperature:? must be"):
        build_loss("drpr", temperature=temperature)
