"""Spectral clustering: two ways to differentiate it, identities, and batches that teach nothing."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError

BATCHES = {"10x6": [6] * 10, "unbalanced": [2, 5, 3, 7, 11], "one_class": [20]}


def indicators(labels):
    y = torch.nn.functional.one_hot(labels).double()
    return y / y.sum(0).sqrt()


def by_pinv(f, labels):
    j = indicators(labels)
    return j.shape[1] - (j.T @ (f @ torch.linalg.pinv(f)) @ j).trace()


def by_qr(f, labels):
    j, q = indicators(labels), torch.linalg.qr(f).Q
    return j.shape[1] - (q.T @ j).square().sum()


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("way", [by_pinv, by_qr])
def test_equals_what_autograd_makes_of_it(build_loss, make_batch, derive, same, sizes, way):
    x, labels = make_batch(sizes, dim=8)
    loss = build_loss("spectral_clust")
    same(derive(lambda f: loss(f, labels), x), derive(lambda f: way(f, labels), x), 1e-12)


def test_the_gradient_is_at_right_angles_to_the_columns(build_loss, make_batch, derive):
    x, labels = make_batch([6] * 10, dim=8)
    _, gradient = derive(lambda f: build_loss("spectral_clust")(f, labels), x)
    assert gradient.abs().max() > 1e-3
    assert (x.T @ gradient).abs().max() < 1e-12


def test_any_invertible_matrix_leaves_it(build_loss, make_batch):
    x, labels = make_batch([6] * 10, dim=8)
    a = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = build_loss("spectral_clust")
    torch.testing.assert_close(loss(x @ a, labels), loss(x, labels), atol=1e-11, rtol=0)


def test_it_is_the_distance_of_two_projections(build_loss, make_batch):
    x, labels = make_batch([6] * 10, dim=8)
    c = indicators(labels) @ indicators(labels).T
    p = x @ torch.linalg.pinv(x)
    wanted = (p - c).square().sum()
    torch.testing.assert_close(8 + 10 - 2 * (10 - build_loss("spectral_clust")(x, labels)), wanted)


@pytest.mark.parametrize(("classes", "dim"), [(10, 8), (4, 8), (8, 8)])
def test_it_is_between_its_bounds(build_loss, make_batch, classes, dim):
    x, labels = make_batch([6] * classes, dim=dim)
    value = float(build_loss("spectral_clust")(x, labels))
    assert max(0, classes - dim) <= value <= classes


def test_indicators_as_embeddings_are_the_optimum(build_loss, derive):
    labels = torch.arange(30) % 6
    x = torch.nn.functional.one_hot(labels).double()
    value, gradient = derive(lambda f: build_loss("spectral_clust")(f, labels), x)
    assert abs(float(value)) < 1e-12
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("n", [8, 20])
def test_a_batch_that_is_not_larger_than_the_embedding_teaches_nothing(
    build_loss, make_batch, derive, n
):
    x, labels = make_batch([n // 4] * 4, dim=n)
    _, gradient = derive(lambda f: build_loss("spectral_clust")(f, labels), x)
    assert gradient.abs().max() < 1e-12
    with pytest.raises(UserError, match=f"batches of {n} images and embeddings of {n} numbers"):
        build_loss("spectral_clust").check_batch(n, n)
    build_loss("spectral_clust").check_batch(n + 1, n)


def test_rounding_errors_are_no_directions(build_loss, make_batch, derive):
    """A rank of 4 in 8 dimensions, in float32: what rounding adds must not blow the gradient up."""
    x, labels = make_batch([6] * 10, dim=4)
    wide = torch.cat([x, x @ x[:4]], 1).float()
    value, gradient = derive(lambda f: build_loss("spectral_clust")(f, labels), wide)
    exact, _ = derive(lambda f: build_loss("spectral_clust")(f, labels), x)
    assert float(value) == pytest.approx(float(exact), abs=1e-3)
    assert gradient.norm() < 10


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_its_size_does_not_matter(build_loss, make_batch, derive, size):
    x, labels = make_batch([6] * 10, dim=8)
    loss = build_loss("spectral_clust")
    value, gradient = derive(lambda f: loss(f, labels), x)
    scaled, gradient_of_scaled = derive(lambda f: loss(f, labels), x * size)
    torch.testing.assert_close(scaled, value)
    torch.testing.assert_close(gradient_of_scaled * size, gradient)


@pytest.mark.parametrize("length", [1e-42, 1e-32])
def test_embeddings_next_to_zero_have_no_gradient(build_loss, length):
    """That of embeddings of length 1e-42, of order 1e42, is no float32."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * length
    x.requires_grad_()
    value = build_loss("spectral_clust")(x, torch.arange(8) % 3)
    value.backward()
    assert value == 3
    assert not x.grad.any()
