"""SNCA against loops over a list of what was seen, step after step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import NCALoss

from zoo import UserError


def loops(x, labels, memory, sigma=0.05):
    """The mean of -log p_i; memory is a list of (embedding, label) of the past."""
    f, y = F.normalize(x), labels.tolist()
    losses = []
    for i in range(len(y)):
        neighbours = [(f[j], y[j]) for j in range(len(y)) if j != i] + memory
        logits = torch.stack([f[i] @ v / sigma for v, _ in neighbours])
        own = torch.tensor([label == y[i] for _, label in neighbours])
        if own.any():
            losses.append(logits.logsumexp(0) - logits[own].logsumexp(0))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("memory_size", [7, 16, 40, 100])
def test_five_steps_equal_the_loops(build_loss, make_batch, derive, same, memory_size):
    """Sizes that are filled in a step, in some and never; batches of two sizes."""
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=memory_size).double()
    memory = []
    for step in range(5):
        x, labels = make_batch([4, 4, 3, 1] if step % 2 else [2] * 8, seed=step)
        wanted = derive(lambda z: loops(z, labels, memory), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)  # noqa: B023
        memory = [*memory, *zip(F.normalize(x), labels.tolist(), strict=True)][-memory_size:]


def test_the_first_step_is_pmls_nca(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 5)
    loss = build_loss("scalable_nca", embedding_size=16)
    pml = NCALoss(softmax_scale=20.0, distance=CosineSimilarity())
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: pml(z, labels), x), 1e-12)


def test_gradcheck_with_a_memory(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4)
    loss = build_loss("scalable_nca", sigma=0.2).double()
    loss(x.flip(0) + 1, labels)
    loss.eval()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_evaluation_only_reads(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    loss = build_loss("scalable_nca", embedding_size=16)
    loss(x, labels)
    loss.eval()
    first = loss(x + 1, labels)
    assert int(loss.stored) == len(x)
    torch.testing.assert_close(loss(x + 1, labels), first)


def test_two_steps_before_one_backward(build_loss, make_batch):
    """The memory is written to in place; the graph of the step before keeps what it saw."""
    x, labels = make_batch([4] * 5)
    x.requires_grad_()
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=30)
    (loss(x, labels) + loss(x * 2 + 1, labels) + loss(x - 1, labels)).backward()
    assert torch.isfinite(x.grad).all()
    assert not loss.memory.requires_grad


def test_a_resumed_run_goes_on(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    one = build_loss("scalable_nca", embedding_size=16, memory_size=30)
    other = build_loss("scalable_nca", embedding_size=16, memory_size=30)
    for step in range(3):
        one(x + step, labels)
    assert set(one.state_dict()) == {"memory", "memory_labels", "stored"}
    other.load_state_dict(one.state_dict())
    for step in range(3):
        assert torch.equal(other(x - step, labels), one(x - step, labels))
    assert {b.shape for b in one.buffers()} == {(30, 16), (30,), ()}


def test_a_batch_that_is_larger_than_the_memory_leaves_its_end(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=6).double()
    loss(x, labels)
    order = (loss.memory_labels, labels[-6:])
    assert torch.equal(*(values.sort().values for values in order))
    assert int(loss.stored) == 6


def test_a_positive_in_the_memory_is_enough(build_loss):
    x = torch.eye(4)
    loss = build_loss("scalable_nca")
    assert loss(x[:2], torch.tensor([-5, 2**40])) == 0
    assert loss(x[2:], torch.tensor([2**40, 3])) > 0


@pytest.mark.parametrize("arguments", [{"memory_size": 0}, {"sigma": 0.0}, {"sigma": -1.0}])
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match="must be"):
        build_loss("scalable_nca", **arguments)
