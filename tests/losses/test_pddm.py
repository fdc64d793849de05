"""PDDM against loops over all quadruplets, and what its similarity may depend on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError


def build(size=6, seed=0, **arguments):
    torch.manual_seed(seed)
    return zoo.build("losses", "pddm", embedding_size=size, **{"hidden": 5, **arguments}).double()


def similarity(loss, a, b):
    """S of one pair, written out."""

    def unit_relu(layer, x):
        positive = [F.relu(w @ x + bias) for w, bias in zip(layer.weight, layer.bias, strict=True)]
        return F.normalize(torch.stack(positive), dim=0)

    u = unit_relu(loss.difference, (a - b).abs())
    v = unit_relu(loss.middle, (a + b) / 2)
    c = F.relu(loss.combine(torch.cat([u, v])))
    return loss.score(c).squeeze()


def loops(loss, x, labels):
    f, y, n = F.normalize(x), labels.tolist(), len(x)
    s = {(a, b): similarity(loss, f[a], f[b]) for a in range(n) for b in range(n) if a != b}
    found = []
    for i in range(n):
        positives = [j for j in range(n) if j != i and y[j] == y[i]]
        negatives = [k for k in range(n) if y[k] != y[i]]
        if not positives or not negatives:
            continue
        j = min(positives, key=lambda j, i=i: float(s[i, j].detach()))
        k = max(negatives, key=lambda k, i=i: float(s[i, k].detach()))
        m = max(negatives, key=lambda k, j=j: float(s[j, k].detach()))
        value = F.relu(loss.alpha + s[i, k] - s[i, j]) + F.relu(loss.alpha + s[j, m] - s[i, j])
        near, far_i, far_j = (f[i] - f[j]).norm(), (f[i] - f[k]).norm(), (f[j] - f[m]).norm()
        apart = F.relu(loss.beta + near - far_i) + F.relu(loss.beta + near - far_j)
        found.append((float(s[i, j].detach()), value + loss.embedding * apart))
    if not found:
        return x.sum() * 0
    if loss.quadruplets == "batch":
        return min(found, key=lambda pair: pair[0])[1]
    return torch.stack([value for _, value in found]).mean()


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [4], [1] * 4, [1], [2, 1]])
@pytest.mark.parametrize(
    "settings", [{}, {"quadruplets": "anchor", "alpha": 0.1, "beta": 0.4, "embedding": 2.0}]
)
def test_value_and_gradients_equal_the_loops(make_batch, derive, same, sizes, settings):
    x, labels = make_batch(sizes, dim=6)
    loss = build(**settings)
    wanted = derive(lambda z: loops(loss, z, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    if wanted[0]:
        parameters = list(loss.parameters())
        found = torch.autograd.grad(loss(x, labels), parameters)
        others = torch.autograd.grad(loops(loss, x, labels), parameters, allow_unused=True)
        for mine, theirs in zip(found, others, strict=True):
            torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs)


def test_the_similarity_depends_on_where_a_pair_lies_and_not_on_its_order():
    loss = build()
    f = F.normalize(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double())
    s = loss.similarities(f)
    assert torch.equal(s, s.T)
    shifted = torch.stack([f[0], f[1], f[0] + 0.3, f[1] + 0.3])  # equal differences
    s = loss.similarities(shifted)
    assert (s[0, 1] - s[2, 3]).abs() > 1e-4
    with torch.no_grad():
        loss.middle.weight.zero_()
    s = loss.similarities(shifted)
    torch.testing.assert_close(s[0, 1], s[2, 3])


def test_a_perfect_similarity_and_embedding_cost_nothing():
    x = torch.eye(6)[[0, 0, 1, 1]].double()
    labels = torch.tensor([0, 0, 1, 1])
    loss = build()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.zero_()
        loss.difference.weight[0] = 1.0  # of a difference, any part
        loss.combine.weight[0, 0] = 1.0
        loss.score.weight[0, 0] = -1.0
    assert loss(x, labels) == 0
    assert loss(x, torch.tensor([0, 1, 0, 1])) > 1


@pytest.mark.slow
def test_descent_learns_a_similarity(make_batch):
    x, labels = make_batch([4] * 4, dim=6, spread=0.5)
    loss = build(embedding=0.0, hidden=16, quadruplets="anchor")
    before = float(loss(x, labels).detach())
    for _ in range(200):
        loss.zero_grad()
        value = loss(x, labels)
        value.backward()
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter -= 0.1 * parameter.grad
    assert float(value.detach()) < 0.3 * before


@pytest.mark.parametrize("case", ["equal", "zero", "huge"])
def test_extreme_embeddings_are_finite(case):
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    x = {"equal": x[:1].repeat(6, 1), "zero": x * 0, "huge": x * 1e30}[case].requires_grad_()
    loss = build().float()
    value = loss(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"quadruplets": "anchors"}, "quadruplets.* anchor"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
