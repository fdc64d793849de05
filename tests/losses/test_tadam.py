"""Metric scaling against loops, and its limits in alpha."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def loops(x, labels, alpha, squared=True):
    y = labels.tolist()
    losses = []
    for i in range(len(y)):
        rest = [j for j in range(len(y)) if j != i]
        distances = {}
        for k in {y[j] for j in rest}:
            mean = torch.stack([x[j] for j in rest if y[j] == k]).mean(0)
            distances[k] = (x[i] - mean).square().sum() if squared else (x[i] - mean).norm()
        if y[i] in distances:
            z = sum(torch.exp(-alpha * (d - distances[y[i]])) for d in distances.values())
            losses.append(z.log())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("alpha", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("sizes", [[4] * 5, [2, 5, 1, 3]])
def test_value_and_gradients_equal_the_loops(
    build_loss, make_batch, derive, same, squared, alpha, sizes
):
    x, labels = make_batch(sizes, length=0.5)
    loss = build_loss("tadam", alpha=alpha, squared=squared).double()
    wanted = derive(lambda z: loops(z, labels, alpha, squared), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-7)
    (mine,) = torch.autograd.grad(loss(x, labels), loss.alpha)
    free = torch.tensor(loss.alpha.item(), dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(loops(x, labels, free, squared), free)
    torch.testing.assert_close(mine, wanted)


def authors_head(queries, support, shots, multiplier):
    """The logits of the authors' head: the norm of each difference, times minus the multiplier."""
    prototypes = support.view(-1, shots, support.shape[1]).mean(1)
    return -multiplier * (queries[:, None] - prototypes).norm(dim=-1)


def test_the_authors_settings(build_loss, make_batch, derive, same):
    """Five classes with three support images each, three queries of a class; alpha is kept."""
    x, _ = make_batch([6] * 5, length=0.3)
    labels = torch.arange(5).repeat_interleave(3)
    loss = build_loss("tadam", alpha=7.5, squared=False, learn_alpha=False).double()
    assert not [p for p in loss.parameters() if p.requires_grad]

    def theirs(z):
        logits = authors_head(z[:15], z[15:], 3, 7.5)
        return torch.nn.functional.cross_entropy(logits, labels)

    found = derive(lambda z: loss(z[:15], labels, ref_emb=z[15:], ref_labels=labels), x)
    same(found, derive(theirs, x), 1e-10)


def test_a_query_on_a_prototype_has_a_finite_gradient(build_loss, derive):
    """The distance has no derivative there."""
    x = torch.tensor([[1.0, 2], [1, 2], [1, 2], [3, 4], [3, 4]])
    loss = build_loss("tadam", squared=False)
    value, gradient = derive(lambda z: loss(z, torch.tensor([0, 0, 0, 1, 1])), x)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4], dim=4, length=0.5)
    loss = build_loss("tadam").double()
    alpha = loss.alpha.detach().clone().requires_grad_()

    def function(z, a):
        return torch.func.functional_call(loss, {"alpha": a}, (z, labels))

    assert torch.autograd.gradcheck(function, (x.requires_grad_(), alpha))


def test_at_one_it_is_the_prototypical_loss(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 5)
    one, other = build_loss("tadam"), build_loss("prototypical")
    same(derive(lambda z: one(z, labels), x), derive(lambda z: other(z, labels), x), 1e-13)


def test_small_alpha_pulls_to_the_own_and_pushes_from_the_mean(build_loss, make_batch, derive):
    """Lemma 1: the gradient over alpha tends to that of d_own minus the mean of all d."""
    x, labels = make_batch([5] * 4, length=0.5)
    support, s_labels = x[10:], labels[10:]
    assert len(s_labels.unique()) == 4
    means = torch.stack([support[s_labels == k].mean(0) for k in range(4)])

    def limit(z):
        d = (z[:, None] - means).square().sum(2)
        return (d[range(10), labels[:10]] - d.mean(1)).mean()

    _, wanted = derive(limit, x[:10])
    loss = build_loss("tadam", alpha=1e-6).double()
    _, got = derive(lambda z: loss(z, labels[:10], None, support, s_labels), x[:10])
    torch.testing.assert_close(got / loss.alpha.item(), wanted, atol=1e-4, rtol=1e-3)


def test_large_alpha_sees_the_nearest_wrong_prototype_only(build_loss):
    x = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    gallery = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-2.5, 0.0]], dtype=torch.float64)
    loss = build_loss("tadam", alpha=1000.0).double()
    value = loss(x, torch.tensor([5]), None, gallery, torch.tensor([5, 6, 7]))
    assert float(value) == pytest.approx(1000 * (9 - 4))


def test_alpha_is_learned_and_saved(build_loss, make_batch):
    x, labels = make_batch([4] * 5, length=0.2)
    loss, other = build_loss("tadam"), build_loss("tadam", alpha=3.0)
    before = loss.alpha.item()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(x.float(), labels).backward()
        optimizer.step()
    assert loss.alpha.item() != before
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(x, labels), loss(x, labels))


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
def test_impossible_arguments(build_loss, alpha):
    with pytest.raises(UserError, match="alpha:? must be"):
        build_loss("tadam", alpha=alpha)
