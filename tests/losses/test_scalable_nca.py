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
    assert set(one.state_dict()) == {"memory", "memory_labels", "memory_ids", "stored"}
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


def test_a_queue_leaves_older_embeddings_of_an_image_out(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 5)
    ids = torch.arange(20) + 3
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=15).double()
    memory = []
    for step in range(4):
        rows = torch.randperm(20, generator=torch.Generator().manual_seed(step))[:12]
        now = x[rows] + 0.1 * step

        def wanted(z, rows=rows, memory=memory):
            y, f = labels[rows].tolist(), F.normalize(z)
            terms = []
            for i, image in enumerate(rows.tolist()):
                seen = [(f[j], y[j]) for j in range(12) if j != i]
                seen += [(v, label) for v, label, other in memory if other != image]
                terms.append(nll(f[i], y[i], seen))
            return torch.stack([t for t in terms if t is not None]).mean()

        wanted_now = derive(wanted, now)
        found = derive(lambda z, r=rows: loss(z, labels[r], image_ids=ids[r]), now)
        same(found, wanted_now, 1e-12)
        new = zip(F.normalize(now), labels[rows].tolist(), rows.tolist(), strict=True)
        memory = [*memory, *new][-15:]


def nll(v, label, neighbours, sigma=0.05):
    """-log p of an image with its neighbours (embedding, label), or None without a positive."""
    logits = torch.stack([v @ other / sigma for other, _ in neighbours])
    own = torch.tensor([other == label for _, other in neighbours])
    return logits.logsumexp(0) - logits[own].logsumexp(0) if own.any() else None


def slot_loops(x, labels, ids, slots, sigma=0.05):
    """The mean of -log p_i; slots map an image to its (embedding, label)."""
    f, y, ids = F.normalize(x), labels.tolist(), ids.tolist()
    terms = []
    for i, image in enumerate(ids):
        neighbours = [slot for other, slot in slots.items() if other != image]
        fresh = [j for j in range(len(y)) if ids[j] != image and ids[j] not in slots]
        terms.append(nll(f[i], y[i], [*neighbours, *((f[j], y[j]) for j in fresh)], sigma))
    terms = [term for term in terms if term is not None]
    return torch.stack(terms).mean() if terms else (x * 0).sum()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("sizes", [[4] * 5, [7, 1, 2, 6, 4]])
def test_slots_equal_the_loops(build_loss, make_batch, derive, same, momentum, sizes):
    """Six steps of batches of 8 of 20 images, one of which is there twice."""
    x, labels = make_batch(sizes)
    loss = build_loss(
        "scalable_nca", embedding_size=16, memory_size=None, momentum=momentum, num_images=20
    ).double()
    slots = {}
    for step in range(6):
        rows = torch.randperm(20, generator=torch.Generator().manual_seed(step))[:7]
        rows = torch.cat([rows, rows[2:3]])
        now = x[rows] + 0.2 * step + torch.arange(8)[:, None] / 50
        found = derive(lambda z, r=rows: loss(z, labels[r], image_ids=r), now)
        same(found, derive(lambda z, r=rows: slot_loops(z, labels[r], r, slots), now), 1e-12)
        f = F.normalize(now)
        for image in set(rows.tolist()):
            mean = f[rows == image].mean(0)
            if image in slots:
                mean = momentum * slots[image][0] + (1 - momentum) * mean
            slots[image] = (mean / mean.norm(), int(labels[image]))


def test_full_slots_are_constants_and_the_own_one_does_not_count(build_loss, make_batch, derive):
    """The paper's loss: the value depends on an image and the others' slots alone."""
    x, labels = make_batch([4] * 5)
    every = torch.arange(20)
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=None, num_images=20).double()
    loss(x, labels, image_ids=every)
    loss.eval()
    whole = derive(lambda z: loss(z, labels, image_ids=every), x + 1)
    alone = [
        derive(
            lambda z, i=i: loss(z[i : i + 1], labels[i : i + 1], image_ids=every[i : i + 1]), x + 1
        )
        for i in range(20)
    ]
    torch.testing.assert_close(torch.stack([value for value, _ in alone]).mean(), whole[0])
    torch.testing.assert_close(torch.stack([gradient for _, gradient in alone]).mean(0), whole[1])
    before = float(loss(x, labels, image_ids=every))
    seventh = (x[7:8] + 1, labels[7:8], None, None, None, every[7:8])
    loss.memory[7] = F.normalize(torch.ones(16, dtype=torch.float64), dim=0)
    torch.testing.assert_close(loss(*seventh), alone[7][0])
    assert float(loss(x, labels, image_ids=every)) != before


def test_slots_are_restored(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    one, other = (
        build_loss("scalable_nca", embedding_size=16, memory_size=None, num_images=30)
        for _ in range(2)
    )
    for step in range(3):
        one(x + step, labels, image_ids=torch.arange(20) + 5 * (step % 2))
    other.load_state_dict(one.state_dict())
    for step in range(3):
        given = (x - step, labels, None, None, None, torch.arange(20) + 7)
        assert torch.equal(other(*given), one(*given))


def test_slots_need_to_know_the_images(build_loss, make_batch):
    x, labels = make_batch([4] * 5)
    with pytest.raises(UserError, match="give num_images"):
        build_loss("scalable_nca", embedding_size=16, memory_size=None)
    loss = build_loss("scalable_nca", embedding_size=16, memory_size=None, num_images=19)
    with pytest.raises(UserError, match="needs image_ids, the place of each image"):
        loss(x, labels)
    with pytest.raises(UserError, match="from 0 to 19, but .* built for 19 images, 0 to 18"):
        loss(x, labels, image_ids=torch.arange(20))
    for wrong in (torch.arange(19), torch.arange(20.0), list(range(20))):
        with pytest.raises(UserError, match=r"image_ids must be int64 of shape \(20,\), not"):
            loss(x, labels, image_ids=wrong)


WRONG = [{"memory_size": 0}, {"sigma": 0.0}, {"sigma": -1.0}, {"momentum": 1.0}, {"momentum": -0.1}]


@pytest.mark.parametrize("arguments", WRONG)
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match="must be"):
        build_loss("scalable_nca", **arguments)
