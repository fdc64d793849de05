"""The potential field against loops over all pairs of points, with the gradient of its proxies."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError
from zoo.losses import potential_field

SETTINGS = [(3.0, 0.2), (1.0, 0.6), (4.0, 1.2)]


def loops(x, labels, proxies, alpha, delta):
    """Sum the energies of all ordered pairs, as the paper writes them."""
    c, m, _ = proxies.shape
    points = torch.cat([x, proxies.flatten(0, 1)])
    points = points / points.norm(dim=1, keepdim=True)
    classes = [*labels.tolist(), *(k for k in range(c) for _ in range(m))]
    energy = 0
    for i in range(len(points)):
        for j in range(len(points)):
            if i == j:
                continue
            r = (points[i] - points[j]).norm()
            inside = bool(r < delta)
            if classes[i] == classes[j]:
                energy = energy - (delta**-alpha if inside else r**-alpha)
            else:
                energy = energy + (r**-alpha if inside else delta**-alpha)
    return energy


def constant(labels, proxies, alpha, delta):
    """Return what the pairs of two classes have at a distance, which the loss leaves out."""
    c, m, _ = proxies.shape
    classes = torch.cat([labels, torch.arange(c).repeat_interleave(m)])
    return int((classes[:, None] != classes).sum()) * delta**-alpha


@pytest.mark.parametrize(("alpha", "delta"), SETTINGS)
@pytest.mark.parametrize("sizes", [[3, 3, 3], [1, 4, 2]], ids=["balanced", "unbalanced"])
def test_equals_the_loops(build_loss, make_batch, same, sizes, alpha, delta):
    x, labels = make_batch(sizes, dim=4, spread=0.3)
    loss = build_loss(
        "potential_field", num_classes=3, proxies_per_class=2, alpha=alpha, delta=delta
    ).double()
    proxies = loss.proxies.detach().clone().requires_grad_()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = loss(a, labels)
    energy = loops(b, labels, proxies, alpha, delta) - constant(labels, proxies, alpha, delta)
    wanted = energy * delta**alpha / len(x)
    gradients = torch.autograd.grad(found, (a, loss.proxies))
    assert all(g.abs().max() > 1e-4 for g in gradients)
    expected = torch.autograd.grad(wanted, (b, proxies))
    same((found.detach(), *gradients), (wanted.detach(), *expected), 1e-10)


def two_points(build_loss, labels, distance, **arguments):
    """Return value and gradient of two images at a distance, with proxies far from all."""
    loss = build_loss(
        "potential_field", num_classes=2, embedding_size=3, proxies_per_class=1, **arguments
    ).double()
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[[0.0, 0, -1]], [[0, 0, -1]]]))
    angle = 2 * torch.tensor(distance / 2, dtype=torch.float64).asin()
    x = torch.stack([torch.zeros(2), torch.stack([angle.sin(), angle.cos() - 1])]).double()
    x = torch.cat([x[:, :1], torch.zeros(2, 1), x[:, 1:] + 1], 1).requires_grad_()
    value = loss(x, torch.tensor(labels))
    value.backward()
    return float(value.detach()), x.grad


def test_near_positives_and_far_negatives_feel_no_force(build_loss):
    for labels, still, moved in (([0, 0], 0.19, 0.21), ([0, 1], 0.21, 0.19)):
        only_proxies = two_points(build_loss, labels, still)[1]
        both = two_points(build_loss, labels, moved)[1]
        assert only_proxies.abs().max() < 0.02  # of the proxy, at distance 2
        assert both.abs().max() > 5


def test_the_force_decays_with_distance(build_loss):
    forces = [two_points(build_loss, [0, 0], r)[1].norm() for r in (0.25, 0.5, 1.0)]
    assert forces[0] > 10 * forces[1] > 100 * forces[2]


def test_blocks_change_nothing(build_loss, make_batch, derive, same, monkeypatch):
    x, labels = make_batch([3, 4, 2], dim=4, spread=0.3)
    loss = build_loss("potential_field", num_classes=3).double()
    wanted = derive(lambda z: loss(z, labels), x)
    for block in (1, 40):
        monkeypatch.setattr(potential_field, "_BLOCK_ELEMENTS", block)
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)


@pytest.mark.parametrize("alpha", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("x", [torch.ones(6, 4), torch.zeros(6, 4), torch.eye(6)[:, :4] * 1e30])
def test_never_nan(build_loss, derive, x, alpha):
    y = torch.tensor([0, 0, 1, 1, 0, 1])
    loss = build_loss("potential_field", alpha=alpha, delta=1.0)
    for z in (x, x + 1e-3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))):
        value, gradient = derive(lambda z: loss(z, y), z)
        assert value.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "wrong", [{"proxies_per_class": 0}, {"alpha": 0.0}, {"alpha": 11.0}, {"delta": 0.0}], ids=str
)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        build_loss("potential_field", **wrong)


def test_labels_without_proxies_are_refused(build_loss):
    with pytest.raises(UserError, match="this loss has weights for 2 classes"):
        build_loss("potential_field")(torch.ones(2, 4), torch.tensor([0, 2]))
