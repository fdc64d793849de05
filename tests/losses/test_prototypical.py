"""The prototypical loss against loops, episodes and their limits."""

from __future__ import annotations

import math

import pytest
import torch

BATCHES = {"5x4": [4] * 5, "10x2": [2] * 10, "unbalanced": [2, 5, 3, 7], "singles": [4, 1, 3, 1]}


def episode(queries, query_labels, support, support_labels, scale=1.0):
    """Transcribe the paper: -log p of each query, all in loops."""
    classes = sorted(set(support_labels))
    prototypes = {}
    for k in classes:
        members = [support[i] for i in range(len(support)) if support_labels[i] == k]
        prototypes[k] = sum(members) / len(members)
    losses = []
    for x, y in zip(queries, query_labels, strict=True):
        if y in prototypes:
            logits = torch.stack([-scale * (x - prototypes[k]).square().sum() for k in classes])
            losses.append(logits.logsumexp(0) - logits[classes.index(y)])
    return losses


def leave_one_out(x, labels, scale=1.0):
    """The mean over the episodes of one query, all other images being the support."""
    y = labels.tolist()
    losses = []
    for i in range(len(y)):
        rest = [j for j in range(len(y)) if j != i]
        losses += episode([x[i]], [y[i]], x[rest], [y[j] for j in rest], scale)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("length", [0.03, 0.1, 0.3])
def test_value_and_gradient_equal_the_loops(build_loss, make_batch, derive, same, sizes, length):
    x, labels = make_batch(sizes, length=length, spread=2.0)
    loss = build_loss("prototypical")
    wanted = derive(lambda z: leave_one_out(z, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-11)
    assert wanted[1].abs().max() > 1e-6


def test_a_gallery_is_the_support(build_loss, make_batch, derive, same):
    x, labels = make_batch([6] * 5, length=0.3)
    labels[3] = 77  # a query without support
    loss = build_loss("prototypical")

    def mine(z):
        return loss(z[:12], labels[:12], ref_emb=z[12:], ref_labels=labels[12:])

    def loops(z):
        y = labels.tolist()
        return torch.stack(episode(z[:12], y[:12], z[12:], y[12:])).mean()

    same(derive(mine, x), derive(loops, x), 1e-12)


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4, length=0.5)
    loss = build_loss("prototypical")
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_equal_embeddings_guess(build_loss):
    """All distances are 0, so that each of four classes has probability 1/4."""
    loss = build_loss("prototypical")
    value = loss(torch.ones(12, 4), torch.arange(12) % 4)
    assert float(value) == pytest.approx(math.log(4))


def test_a_single_image_is_a_prototype_but_no_query(build_loss):
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    value = build_loss("prototypical")(x, torch.tensor([0, 0, 1]))
    # queries 0 and 1 are each 4 from the other; the single is 1 and 5 from them
    wanted = (math.log1p(math.exp(4 - 1)) + math.log1p(math.exp(4 - 5))) / 2
    assert value.item() == pytest.approx(wanted)
    value.backward()
    assert x.grad[2].abs().max() > 0.1


def test_moving_all_changes_nothing(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 5)
    loss = build_loss("prototypical")
    wanted = derive(lambda z: loss(z, labels), x)
    same(derive(lambda z: loss(z + 100, labels), x), wanted, 1e-9)
    far = build_loss("prototypical")(x.float() + 100, labels)
    assert float(far) == pytest.approx(float(wanted[0]), rel=1e-3)
