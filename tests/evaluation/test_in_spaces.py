"""Exact measures in spaces, against brute force by their distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zoo
from zoo.errors import UserError
from zoo.evaluation.at_r import at_r
from zoo.evaluation.measures import measure
from zoo.evaluation.recall import NO_MATCH, ranks, recall_at_k
from zoo.evaluation.spaces import compared

SPACES = ["euclidean", "hyperbolic"]


def items(n=60, d=4, classes=9, seed=0, scale=3.0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=random)
    vectors = (
        torch.randn(n, d, generator=random)
        + 0.8 * torch.randn(classes, d, generator=random)[labels]
    )
    return scale * vectors * (0.2 + torch.rand(n, 1, generator=random)), labels


def by_brute_force(space, vectors, labels, gallery=None, gallery_labels=None):
    """Return the rank of each query by sorting distances, ties against it."""
    points = space.points(vectors.double())
    others = points if gallery is None else space.points(gallery.double())
    other_labels = labels if gallery is None else gallery_labels
    found = []
    for q in range(len(points)):
        distance = space.distances(points[q : q + 1], others)[0]
        own = other_labels == labels[q]
        if gallery is None:
            own[q] = False
        if not own.any():
            found.append(NO_MATCH)
            continue
        best = distance[own].min()
        wrong = other_labels != labels[q]
        found.append(1 + int((distance[wrong] <= best + 1e-9).sum()))
    return torch.tensor(found)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("block", [None, 7])
def test_ranks(name, block):
    space = zoo.build("spaces", name)
    vectors, labels = items()
    assert torch.equal(
        ranks(vectors, labels, space=space, block=block).long(),
        by_brute_force(space, vectors, labels),
    )


@pytest.mark.parametrize("name", SPACES)
def test_ranks_in_a_gallery(name):
    space = zoo.build("spaces", name)
    vectors, labels = items(30, seed=1)
    gallery = items(40, seed=2)
    found = ranks(vectors, labels, gallery=gallery[0], gallery_labels=gallery[1], space=space)
    assert torch.equal(found.long(), by_brute_force(space, vectors, labels, *gallery))


@pytest.mark.parametrize("name", SPACES)
def test_faiss_finds_the_same(name):
    pytest.importorskip("faiss")
    space = zoo.build("spaces", name)
    vectors, labels = items()
    found = recall_at_k(vectors, labels, [1, 2, 4], backend="faiss", space=space)
    assert found == recall_at_k(vectors, labels, [1, 2, 4], space=space)


def test_the_space_makes_a_difference():
    vectors, labels = items()
    found = {
        name: recall_at_k(vectors, labels, [1], space=zoo.build("spaces", name))[1]
        for name in SPACES
    }
    found["cosine"] = recall_at_k(vectors, labels, [1])[1]
    assert len(set(found.values())) > 1


@pytest.mark.parametrize("name", SPACES)
def test_a_collapsed_network_scores_nothing(name):
    vectors = torch.ones(12, 3)
    assert recall_at_k(vectors, torch.arange(12) % 3, [1, 2], space=zoo.build("spaces", name)) == {
        1: 0,
        2: 0,
    }


@pytest.mark.parametrize("name", SPACES)
def test_average_precision(name):
    space = zoo.build("spaces", name)
    vectors, labels = items(50, classes=6)
    found = at_r(vectors, labels, space=space)
    points = space.points(vectors.double())
    distance = space.distances(points, points).fill_diagonal_(torch.inf)
    for q in range(50):
        r = int((labels == labels[q]).sum()) - 1
        right = (labels[distance[q].argsort()[:r]] == labels[q]).double()
        share = right.cumsum(0) / torch.arange(1, r + 1)
        assert found.precision[q] == pytest.approx(float(right.mean()))
        assert found.average_precision[q] == pytest.approx(float((share * right).sum() / r))


def test_clusters_are_made_by_cosines():
    with pytest.raises(UserError, match="nmi and ami cluster by cosines"):
        measure(["nmi"], *items(), space=zoo.build("spaces", "euclidean"))


@pytest.mark.parametrize("name", SPACES)
def test_sides_of_a_report(name):
    space = zoo.build("spaces", name)
    vectors, _ = items(20)
    own, others = compared(vectors.numpy(), space)
    points = space.points(vectors.double())
    wanted = space.distances(points, points).argsort(1)
    assert np.array_equal((own @ others.T).argsort(1)[:, ::-1], wanted)


MOVED = {
    "far from the origin": ("euclidean", lambda x: x + 1e4),
    "one far away": ("euclidean", lambda x: torch.cat([1e4 * x[:1], x[1:]])),
    "tiny": ("hyperbolic", lambda x: 1e-6 * x),
    "near the edge": ("hyperbolic", lambda x: 30 * x),
}


@pytest.mark.parametrize("case", MOVED)
def test_points_in_odd_places_are_no_ties(case):
    name, move = MOVED[case]
    space = zoo.build("spaces", name, **({"clip": None} if name == "hyperbolic" else {}))
    vectors, labels = items(scale=1.0)
    moved = move(vectors.double())
    points = space.points(moved)
    distances = space.distances(points, points).fill_diagonal_(torch.inf)
    other = labels[:, None] != labels
    best = distances.masked_fill(other, torch.inf).min(1).values
    wanted = 1 + ((distances <= best[:, None]) & other).sum(1)
    found = ranks(moved, labels, space=space).long()
    assert torch.equal(found, torch.where(best == torch.inf, NO_MATCH, wanted))
    assert len(found.unique()) > 5
