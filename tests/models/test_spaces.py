"""Spaces: their formulas, and the vectors whose inner products have the order of the distances."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.errors import UserError
from zoo.evaluation import spaces

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 5, generator=GENERATOR, dtype=torch.float64)


def ball(u, c=0.1, r=2.3):
    """Return the exponential map at the origin of one clipped vector, by the formula."""
    length = math.sqrt(sum(v * v for v in u))
    if length > r:
        u, length = [v * r / length for v in u], r
    z = math.sqrt(c) * length
    return [v * (math.tanh(z) / z if z else 1.0) for v in u]


def mobius(x, y, c):
    """Return the Moebius sum of x and y (Eq. 1 of the paper)."""
    xy = sum(a * b for a, b in zip(x, y, strict=True))
    xx, yy = sum(a * a for a in x), sum(b * b for b in y)
    below = 1 + 2 * c * xy + c * c * xx * yy
    return [
        ((1 + 2 * c * xy + c * yy) * a + (1 - c * xx) * b) / below
        for a, b in zip(x, y, strict=True)
    ]


def paper_distance(x, y, c=0.1):
    """Return 2 / sqrt(c) artanh(sqrt(c) |-x (+) y|), Eq. 2 of the paper."""
    between = mobius([-a for a in x], y, c)
    return 2 / math.sqrt(c) * math.atanh(math.sqrt(c) * math.sqrt(sum(v * v for v in between)))


@pytest.mark.parametrize(("c", "r"), [(0.1, 2.3), (1.0, 1.5), (0.01, None)])
def test_points_and_distances_of_the_paper(c, r):
    space = zoo.build("spaces", "hyperbolic", curvature=c, clip=r)
    points = space.points(X)
    by_hand = [ball(u, c, math.inf if r is None else r) for u in X.tolist()]
    torch.testing.assert_close(points, torch.tensor(by_hand, dtype=torch.float64))
    wanted = [[paper_distance(a, b, c) for b in by_hand[5:]] for a in by_hand[:5]]
    found = space.distances(points[:5], points[5:])
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_from_the_origin_the_distance_is_twice_the_tangent_vector():
    space = zoo.build("spaces", "hyperbolic", curvature=0.5, clip=None)
    found = space.distances(space.points(torch.zeros(1, 5).double()), space.points(X))
    torch.testing.assert_close(found[0], 2 * X.norm(dim=1))


def test_with_little_curvature_it_is_twice_the_euclidean_distance():
    flat = zoo.build("spaces", "hyperbolic", curvature=1e-6, clip=None)
    torch.testing.assert_close(
        flat.distances(flat.points(X), flat.points(X)), 2 * torch.cdist(X, X), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", ["euclidean", "hyperbolic"])
def test_gradients(name):
    space = zoo.build("spaces", name)
    x = X.clone().requires_grad_()

    def distances(u):
        points = space.points(u)
        return space.distances(points[:4], points[4:])

    assert torch.autograd.gradcheck(distances, [x])
    same = X[:1].expand(2, 5).clone().requires_grad_()
    torch.autograd.backward(distances(torch.cat([same, same, same])).sum())
    assert same.grad.isfinite().all()
    zero = torch.zeros(6, 5, requires_grad=True)
    torch.autograd.backward(distances(zero).sum())
    assert zero.grad.isfinite().all()


@pytest.mark.parametrize("name", ["euclidean", "hyperbolic"])
def test_inner_products_stand_for_distances(name):
    space = zoo.build("spaces", name)
    points = space.points(3 * X)
    queries, gallery = points[:5], points[5:]
    wanted = space.distances(queries, gallery)
    products = space.query_vectors(queries) @ space.gallery_vectors(gallery).T
    torch.testing.assert_close(space.distances_of(products, queries), wanted)
    longest = spaces.longest_of(gallery, space)
    q, g = spaces.as_queries(queries, space), spaces.as_gallery(gallery, space, longest)
    torch.testing.assert_close(g.norm(dim=1), torch.full((7,), longest, dtype=torch.float64))
    cosines = torch.nn.functional.normalize(q) @ torch.nn.functional.normalize(g).T
    torch.testing.assert_close(spaces.distances_of(cosines, queries, space, longest), wanted)
    assert torch.equal(cosines.argsort(1, descending=True), wanted.argsort(1))


def test_far_embeddings_stay_within_the_ball():
    space = zoo.build("spaces", "hyperbolic", clip=None)
    far = torch.cat([X.float() * 10.0**e for e in (0, 3, 30)])
    points = space.points(far)
    assert (points.norm(dim=1) < 1 / math.sqrt(0.1)).all()
    assert space.distances(points, points).isfinite().all()


@pytest.mark.parametrize("argument", ["curvature", "clip"])
@pytest.mark.parametrize("value", [0.0, -1.0, 1e-7, 1e7, math.inf, math.nan])
def test_arguments_are_checked(argument, value):
    with pytest.raises(
        UserError, match=f"{argument} must be from 1e-06 to 1e+06".replace("+", r"\+")
    ):
        zoo.build("spaces", "hyperbolic", **{argument: value})
