"""The log-ratio loss, a variance, against all of its triplets."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def triple_loop(x, labels, ref=None, ref_labels=None, offset=1.0, eps=1e-6):
    """The formula for every anchor and every pair of two others."""
    alone = ref is None
    ref, ref_labels = (x, labels) if alone else (ref, ref_labels)
    of_anchors = []
    for a in range(len(x)):
        terms = []
        usable = [
            i
            for i in range(len(ref))
            if not (alone and i == a) and abs(int(labels[a] - ref_labels[i])) + offset > 0
        ]
        for i in usable:
            for j in usable:
                if i != j:
                    d = [(x[a] - ref[k]).square().sum() + eps for k in (i, j)]
                    dy = [(abs(int(labels[a] - ref_labels[k])) + offset) ** 2 for k in (i, j)]
                    terms.append(((d[0] / d[1]).log() - math.log(dy[0] / dy[1])) ** 2)
        if terms:
            of_anchors.append(torch.stack(terms).mean())
    return torch.stack(of_anchors).mean()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[3] * 4, [2, 4, 1, 3]])
@pytest.mark.parametrize("settings", [{}, {"offset": 0.0}, {"offset": 0.5, "eps": 0.1}])
def test_the_variance_equals_the_triple_loop(build_loss, make_batch, derive, same, sizes, settings):
    x, labels = make_batch(sizes)
    loss = build_loss("log_ratio", **settings)
    wanted = derive(lambda z: triple_loop(z, labels, **settings), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    assert wanted[1].abs().max() > 1e-4


def test_a_gallery(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 4)
    loss = build_loss("log_ratio")

    def mine(z):
        return loss(z[:6], labels[:6], ref_emb=z[6:], ref_labels=labels[6:])

    wanted = derive(lambda z: triple_loop(z[:6], labels[:6], z[6:], labels[6:]), x)
    same(derive(mine, x), wanted, 1e-12)


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4)
    loss = build_loss("log_ratio")
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_labels_on_a_line_are_a_perfect_embedding(build_loss):
    """The labels themselves, at any scale and place, have the ratios that are wanted."""
    labels = torch.tensor([0, 1, 3, 7, -4, 2**30])
    x = 5 * labels[:, None].double() + 3
    loss = build_loss("log_ratio", offset=0.0, eps=1e-12)
    assert float(loss(x, labels)) == pytest.approx(0, abs=1e-12)
    x[2] += 1
    assert loss(x, labels) > 1e-3


def test_only_ratios_count(build_loss, make_batch):
    x, labels = make_batch([3] * 4)
    loss = build_loss("log_ratio", eps=1e-12)
    torch.testing.assert_close(loss(7 * x + 2, labels), loss(x, labels))
    torch.testing.assert_close(loss(x, 90 - labels), loss(x, labels))


def test_near_images_keep_their_distance_in_float32(build_loss, make_batch):
    """By products a squared distance of 1e-6 would be lost behind a length of 100."""
    x, labels = make_batch([3] * 4)
    x = 1e-2 * x + 100
    x = x.float().double()
    loss = build_loss("log_ratio", eps=1e-12)
    assert float(loss(x.float(), labels)) == pytest.approx(float(loss(x, labels)), rel=1e-3)


@pytest.mark.parametrize("n", [1, 2])
def test_an_anchor_needs_two_others(build_loss, derive, n):
    loss = build_loss("log_ratio")
    value, gradient = derive(lambda z: loss(z, torch.arange(n)), torch.randn(n, 4))
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("arguments", [{"offset": -1.0}, {"eps": 0.0}, {"eps": math.inf}])
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match="must be"):
        build_loss("log_ratio", **arguments)
