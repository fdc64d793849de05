"""Multibatch against loops, with the gradient of its threshold."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError

CASES = [([3] * 4, 2.0), ([3] * 4, 8.0), ([2, 5, 3], 8.0), ([1, 1, 1], 8.0), ([5], 2.0)]


def loops(x, labels, theta):
    y, hinges = labels.tolist(), []
    for i in range(len(y)):
        for j in range(len(y)):
            if i != j:
                sign = 1 if y[i] == y[j] else -1
                hinges.append((1 - sign * (theta - ((x[i] - x[j]) ** 2).sum())).clamp_min(0))
    return sum(hinges) / len(hinges)


@pytest.mark.parametrize(("sizes", "theta"), CASES)
def test_equals_the_loops(build_loss, make_batch, same, sizes, theta):
    x, labels = make_batch(sizes, dim=4, length=0.5)
    loss = build_loss("multibatch", theta=theta).double()
    found, wanted = [], []
    threshold = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    for of, value in ((found, loss), (wanted, lambda z, y: loops(z, y, threshold))):
        z = x.clone().requires_grad_()
        result = value(z, labels)
        theta_ = loss.theta if of is found else threshold
        of += [result.detach(), *torch.autograd.grad(result, (z, theta_))]
    assert found[0] > 0.1
    same(found, wanted, 1e-12)


def test_separated_pairs_have_no_loss_and_the_threshold_stays(build_loss):
    x = torch.tensor([[0.0, 0], [0.5, 0], [0, 3], [0.5, 3]], requires_grad=True)
    loss = build_loss("multibatch")
    value = loss(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value == 0
    assert not x.grad.any()
    assert loss.theta.grad == 0


def test_the_threshold_moves_towards_violated_pairs(build_loss):
    """Positives that are too far raise it, negatives that are too near lower it."""
    x, near, far = torch.tensor([[0.0], [2.0]]), torch.tensor([0, 0]), torch.tensor([0, 1])
    for labels, scale, wanted in ((near, 1.0, -1.0), (far, 0.5, 1.0)):
        loss = build_loss("multibatch")
        loss(x * scale, labels).backward()
        assert float(loss.theta.grad) == wanted


def test_distances_far_from_the_origin_are_exact(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=4, length=0.5)
    wanted = build_loss("multibatch")(x, labels).detach()
    value = build_loss("multibatch")((x + 100).float(), labels).detach()
    assert float(value) == pytest.approx(float(wanted), rel=1e-4)


def test_pairs_that_are_mined_twice_count_twice(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=4, length=0.5)
    index = [torch.tensor(part) for part in ([0, 0, 1], [2, 2, 3], [4, 4, 4, 5], [6, 6, 6, 7])]
    squares = (x[torch.cat(index[::2])] - x[torch.cat(index[1::2])]).square().sum(1)
    hinges = torch.cat([1 + squares[:3] - 8, 1 - squares[3:] + 8]).clamp_min(0)
    value = build_loss("multibatch", theta=8.0)(x, labels, tuple(index))
    torch.testing.assert_close(value.detach(), hinges.mean())


def test_one_image_gives_zero_with_a_graph(build_loss, derive):
    loss = build_loss("multibatch")
    value, gradient = derive(lambda z: loss(z, torch.tensor([3])), torch.ones(1, 4))
    assert value == 0
    assert not gradient.any()


def test_the_threshold_is_saved(build_loss):
    loss, other = build_loss("multibatch", theta=5.0), build_loss("multibatch")
    other.load_state_dict(loss.state_dict())
    assert other.theta == 5


def test_a_threshold_of_0_is_refused(build_loss):
    with pytest.raises(UserError, match="theta must be positive"):
        build_loss("multibatch", theta=0.0)
