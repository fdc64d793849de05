"""Divide and conquer: which slice learns, how images are divided, and how slices are merged."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import zoo
from zoo import UserError, registry
from zoo.datasets.grouped import GroupedSampler
from zoo.losses.divide_conquer import _renumbered, _without_singles

SLICES = [3, 5, 4]
LABELS = torch.arange(60) % 6
TRUE = torch.arange(60) // 20  # which of three far-apart places an image is at


def data(seed=0):
    """Return embeddings of 60 images, at one of three places each."""
    random = torch.Generator().manual_seed(seed)
    places = torch.randn(3, 12, generator=random)
    return places[TRUE] + 0.05 * torch.randn(60, 12, generator=random)


def build(loss="ice", images=60, slices=SLICES, **arguments):
    sizes = {"num_images": images, "level_sizes": slices, "embedding_size": sum(slices)}
    given = {"loss": loss, **arguments}
    return registry.assemble(
        "losses", "divide_conquer", given, {**sizes, "num_classes": 6}
    ).double()


def rows_of(x):
    return lambda ids=None: x if ids is None else x[list(ids)]


def divided(**arguments):
    loss = build(**arguments)
    found = loss.begin_epoch(0, LABELS, rows_of(data()))
    return loss, torch.as_tensor(found)


def batch(ids, seed=3):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(ids), 12, generator=random, dtype=torch.float64), LABELS[ids]


def test_images_that_are_near_are_a_cluster():
    loss, found = divided()
    pairs = {(int(a), int(b)) for a, b in zip(found, TRUE, strict=True)}
    assert len(pairs) == 3
    assert torch.equal(loss.clusters, found)


@pytest.mark.parametrize("inner", ["ice", "margin", "contrastive", "pml.TripletMarginLoss"])
@pytest.mark.parametrize("place", range(3))
def test_only_the_slice_of_the_cluster_learns(inner, place, derive, same):
    loss, found = divided(loss=inner)
    ids = (place == TRUE).nonzero().flatten()[:12]
    cluster = int(found[ids[0]])
    x, labels = batch(ids)
    start = sum(SLICES[:cluster])
    columns = slice(start, start + SLICES[cluster])
    alone = zoo.build("losses", inner)
    wanted = derive(lambda z: alone(z[:, columns], labels), x)
    found_now = derive(lambda z: loss(z, labels, image_ids=ids), x)
    same(found_now, wanted, 1e-12)
    outside = torch.ones(12, dtype=torch.bool)
    outside[columns] = False
    assert not found_now[1][:, outside].any()
    assert found_now[1][:, columns].any()


def test_a_mixed_batch_trains_each_slice_by_its_share(derive, same):
    loss, found = divided()
    ids = torch.cat([torch.arange(6), torch.arange(20, 23), torch.arange(40, 43)])
    x, labels = batch(ids)
    inner = zoo.build("losses", "ice")

    def wanted(z):
        parts = z.split(SLICES, dim=1)
        return sum((found[ids] == k).sum() / 12 * inner(parts[k], labels) for k in range(3))

    same(derive(lambda z: loss(z, labels, image_ids=ids), x), derive(wanted, x), 1e-12)


def test_clusters_are_renewed_in_every_few_epochs_and_keep_their_numbers():
    loss, first = divided(every=2)
    assert loss.begin_epoch(1, LABELS, rows_of(data(5))) is None
    assert torch.equal(loss.clusters, first)
    for seed in range(1, 6):  # the places are others, who is with whom is not
        again = loss.begin_epoch(2 * seed, LABELS, rows_of(data(seed)))
        assert torch.equal(torch.as_tensor(again), first)


def test_numbers_are_given_so_that_the_fewest_images_move():
    random = np.random.default_rng(0)
    for _ in range(20):
        before, found = random.integers(0, 4, (2, 50))
        orders = [np.array(order) for order in itertools.permutations(range(4))]
        fewest = min((order[found] != before).sum() for order in orders)
        assert (_renumbered(found, before, 4) != before).sum() == fewest


def test_an_image_alone_of_its_class_joins_the_others():
    labels = np.array([5, 5, 5, 5, 9, 9, 9, 7])
    found = np.array([0, 0, 0, 1, 1, 1, 0, 2])
    assert _without_singles(found, labels, 3).tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


def test_from_the_epoch_of_the_merger_on_the_whole_embedding_learns(derive, same):
    loss, first = divided(merge=4)
    assert first.unique().numel() == 3
    x, labels = batch(torch.arange(12))
    wanted = derive(lambda z: zoo.build("losses", "ice")(z, labels), x)
    for epoch in (4, 5):
        groups = loss.begin_epoch(epoch, LABELS, rows_of(data()))
        assert groups.tolist() == [0] * 60
        same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)


def test_before_the_first_epoch_it_is_the_loss_of_the_whole(derive, same):
    x, labels = batch(torch.arange(12))
    wanted = derive(lambda z: zoo.build("losses", "margin")(z, labels), x)
    same(derive(lambda z: build("margin")(z, labels), x), wanted, 1e-12)


def test_each_slice_has_a_boundary_of_its_own():
    loss, found = divided(loss="margin")
    ids = (found == 1).nonzero().flatten()[:12]
    loss(*batch(ids), image_ids=ids).backward()
    reached = [float(one.beta.grad) != 0 for one in loss.losses]
    assert reached == [False, True, False]


def test_mined_pairs_are_passed_on(derive, same):
    loss, found = divided()
    ids = (found == 0).nonzero().flatten()[:12]
    x, labels = batch(ids)
    mined = zoo.build("miners", "batch_hard")(x, labels)
    wanted = derive(lambda z: zoo.build("losses", "ice")(z[:, :3], labels, mined), x)
    same(derive(lambda z: loss(z, labels, mined, image_ids=ids), x), wanted, 1e-12)


def test_pairs_are_mined_in_a_slice(derive, same):
    """The miner of the loss sees the slice; after the merger the whole embedding."""
    loss, found = divided(miner="batch_hard", merge=1)
    ids = (found == 2).nonzero().flatten()[:12]
    x, labels = batch(ids)
    for part in (slice(8, 12), slice(None)):
        mined = zoo.build("miners", "batch_hard")(x[:, part], labels)
        given = (part, mined)
        wanted = derive(lambda z, g=given: zoo.build("losses", "ice")(z[:, g[0]], labels, g[1]), x)
        same(derive(lambda z: loss(z, labels, image_ids=ids), x), wanted, 1e-12)
        loss.begin_epoch(1, LABELS, rows_of(data()))


def test_it_goes_on_from_a_state_dict():
    loss, found = divided()
    other = build()
    other.load_state_dict(loss.state_dict())
    ids = torch.arange(5, 35)
    given = {"image_ids": ids}
    assert torch.equal(loss(*batch(ids), **given), other(*batch(ids), **given))
    again = other.begin_epoch(2, LABELS, rows_of(data(2)))
    assert torch.equal(torch.as_tensor(again), found)


def test_the_sampler_draws_within_the_clusters():
    loss, found = divided()
    sampler = GroupedSampler(LABELS, classes=3, per_class=2)
    sampler.regroup(found.numpy())
    for _, rows in zip(range(3 * len(sampler)), sampler, strict=False):
        assert found[rows].unique().numel() == 1
    assert loss.is_divided


def test_fewer_images_than_slices_and_equal_ones():
    loss = build(images=2)
    assert loss.begin_epoch(0, torch.tensor([0, 0]), rows_of(torch.randn(2, 12))).tolist() == [0, 0]
    loss = build()
    found = loss.begin_epoch(0, LABELS, rows_of(torch.ones(60, 12)))
    assert set(found.tolist()) == {0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"slices": [12]}, r"set model.slices, such as \[32, 32, 32, 32\]"),
        ({"every": 0}, "must be at least 1, not 0 and None"),
        ({"merge": 0}, "must be at least 1, not 2 and 0"),
        (
            {"loss": "pddm"},
            "gives PDDMLoss embeddings of . numbers, with which it fails",
        ),
        ({"loss": "proxy_nca"}, "ProxyNCALoss has weights for classes; choose another loss"),
    ],
)
def test_what_cannot_be_used(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)


def test_images_have_to_be_known():
    loss, _ = divided()
    x, labels = batch(torch.arange(12))
    with pytest.raises(UserError, match="divide_conquer needs image_ids"):
        loss(x, labels)
    with pytest.raises(UserError, match="was built for 60 images"):
        loss(x, labels, image_ids=torch.arange(49, 61))
