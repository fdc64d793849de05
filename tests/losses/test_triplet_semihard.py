"""The semi-hard triplet loss against loops, and what tells it from PML's miner."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.miners import TripletMarginMiner

from zoo import UserError

BATCHES = {"8x4": [4] * 8, "unbalanced": [2, 5, 3, 7], "with_a_single": [4, 1, 3]}


def loops(x, labels, margin, squared):
    f = x / x.norm(dim=1, keepdim=True)
    n, y = len(x), labels.tolist()

    def distance(a, b):
        d = (f[a] - f[b]).square().sum()
        return d if squared else d.sqrt()

    hinges = []
    for a in range(n):
        negatives = [j for j in range(n) if y[j] != y[a]]
        for p in range(n):
            if p == a or y[p] != y[a] or not negatives:
                continue
            farther = [j for j in negatives if distance(a, j) > distance(a, p)]
            near = min(farther, key=lambda j: float(distance(a, j))) if farther else None
            if near is None:
                near = max(negatives, key=lambda j: float(distance(a, j)))
            hinges.append((margin + distance(a, p) - distance(a, near)).clamp_min(0))
    return torch.stack(hinges).mean()


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("margin", [0.2, 1.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, squared, margin):
    x, labels = make_batch(sizes)
    loss = build_loss("triplet_semihard", margin=margin, squared=squared)
    one = derive(lambda z: loss(z, labels), x)
    other = derive(lambda z: loops(z, labels, margin, squared), x)
    same(one, other, 1e-13)
    assert one[0] > 0


def test_the_farthest_where_no_negative_is_farther(build_loss):
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.01], [1.0, 0.3], [1.0, 0.2]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 2])
    f = x / x.norm(dim=1, keepdim=True)
    d = torch.cdist(f, f).square()
    # Anchor 0: the positive is farther than both negatives; 2 is the farther. Anchor 1: 3 is the
    # nearer of those beyond... none is beyond, so the farthest again, 3.
    wanted = (2 + d[0, 1] - d[0, 2] + d[1, 0] - torch.maximum(d[1, 2], d[1, 3])) / 2
    torch.testing.assert_close(build_loss("triplet_semihard")(x, labels), wanted)


def test_the_documented_example_without_negatives_gives_zero(build_loss):
    """TensorFlow's code gives 2.4142 there: margin plus the distance to a negative at 0."""
    x = torch.eye(2)
    assert build_loss("triplet_semihard", squared=False)(x, torch.tensor([0, 0])) == 0


def test_one_triplet_for_each_pair_where_pml_keeps_all(build_loss, make_batch):
    x, labels = make_batch([4] * 8, spread=2.0)
    mined = TripletMarginMiner(0.2, "semihard")(x, labels)
    loss = build_loss("triplet_semihard", margin=0.2)
    assert len(mined[0]) > 96
    assert float(loss(x, labels)) != pytest.approx(float(loss(x, labels, mined)))


@pytest.mark.parametrize("margin", [-1.0, float("nan")])
def test_a_senseless_margin(build_loss, margin):
    with pytest.raises(UserError, match="margin:? must be"):
        build_loss("triplet_semihard", margin=margin)
