"""Hyperspherical prototypes against loops, and where they are placed."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError


@pytest.mark.parametrize("sizes", [[3, 1, 4, 9], [2] * 6])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes):
    x, labels = make_batch(sizes, dim=5)
    loss = build_loss("hyperspherical_prototypes", num_classes=6, embedding_size=5).double()

    def loops(z):
        terms = []
        for row, y in zip(z, labels.tolist(), strict=True):
            cosine = sum(a * b for a, b in zip(row, loss.prototypes[y], strict=True)) / row.norm()
            terms.append((1 - cosine) ** 2)
        return sum(terms) / len(terms)

    same(derive(lambda z: loss(z, labels), x), derive(loops, x), 1e-12)


def cosines(build_loss, classes, dimensions, **arguments):
    sizes = {"num_classes": classes, "embedding_size": dimensions}
    points = build_loss("hyperspherical_prototypes", **sizes, **arguments).prototypes
    torch.testing.assert_close(points.norm(dim=1), torch.ones(classes))
    return (points @ points.T)[~torch.eye(classes, dtype=torch.bool)]


@pytest.mark.parametrize(("classes", "dimensions"), [(2, 7), (3, 2), (5, 4), (10, 16)])
def test_few_classes_form_a_simplex(build_loss, classes, dimensions):
    found = cosines(build_loss, classes, dimensions)
    torch.testing.assert_close(found, torch.full_like(found, -1 / (classes - 1)), atol=0.01, rtol=0)


def test_four_classes_in_a_plane_form_a_square(build_loss):
    assert cosines(build_loss, 4, 2).max() == pytest.approx(0, abs=0.01)


def test_many_classes_are_further_apart_than_at_random(build_loss):
    placed = cosines(build_loss, 100, 32).max()
    assert placed < 0.5 * cosines(build_loss, 100, 32, steps=0).max()


def test_blocks_of_memory_do_not_matter(build_loss, monkeypatch):
    from zoo.losses import hyperspherical_prototypes as module

    wanted = cosines(build_loss, 10, 4, steps=20)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 31)
    torch.testing.assert_close(cosines(build_loss, 10, 4, steps=20), wanted)


def test_they_depend_on_the_seed_alone_and_are_not_learned(build_loss, make_batch):
    sizes = {"num_classes": 5, "embedding_size": 16}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = build_loss("hyperspherical_prototypes", **sizes)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(build_loss("hyperspherical_prototypes", **sizes).prototypes, one.prototypes)
    other = build_loss("hyperspherical_prototypes", **sizes, seed=1)
    assert not torch.allclose(other.prototypes, one.prototypes, atol=0.1)
    assert not list(one.parameters())
    other.load_state_dict(one.state_dict())
    x, labels = make_batch([3, 3, 3, 3, 3])
    assert torch.equal(other(x, labels), one(x, labels))


def test_from_the_best_to_the_worst(build_loss):
    loss = build_loss("hyperspherical_prototypes")
    labels = torch.arange(2)
    assert float(loss(3 * loss.prototypes, labels)) == pytest.approx(0, abs=1e-6)
    assert float(loss(-loss.prototypes, labels)) == pytest.approx(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, not -1"),
        ({"embedding_size": 1}, "embedding_size must be at least 2, not 1"),
    ],
)
def test_impossible_arguments(build_loss, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss("hyperspherical_prototypes", **arguments)
