"""HTL against loops: the tree joined by hand, the margins, every triplet."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError

CLASSES = 7


def data(sizes=(6, 3, 5, 1, 4, 8, 2), seed=0, dim=6):
    """Return embeddings of training images whose classes are near each other in pairs."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), dim, generator=random)
    centres[1::2] = centres[0:-1:2] + 0.4 * centres[1::2]
    order = torch.randperm(len(y), generator=random)
    x = 2 * centres[y] + 0.4 * torch.randn(len(y), dim, generator=random)
    return x[order].double(), y[order]


def square(a, b):
    return float((a / a.norm() - b / b.norm()).square().sum())


def mean(values):
    return sum(values) / len(values)


def margins(x, y, levels, beta):
    """Return alpha of each two classes, with the tree joined step by step in loops."""
    of = {
        c: [row for row, label in zip(x, y.tolist(), strict=True) if label == c]
        for c in set(y.tolist())
    }
    d = {(p, q): mean([square(a, b) for a in of[p] for b in of[q]]) for p in of for q in of}
    s = {
        c: mean([square(a, b) for a, b in itertools.permutations(rows, 2)]) if len(rows) > 1 else 0
        for c, rows in of.items()
    }
    d_0 = mean([s[c] for c, rows in of.items() if len(rows) > 1])

    def apart(one, other):
        return mean([d[p, q] for p in one for q in other])

    joined, nodes = {}, [(c,) for c in of]
    for level in range(levels + 1):
        cut = d_0 + level * (4 - d_0) / levels
        while len(nodes) > 1:
            a, b = min(itertools.combinations(nodes, 2), key=lambda pair: apart(*pair))
            if apart(a, b) > cut:
                break
            nodes = [*(node for node in nodes if node not in (a, b)), a + b]
            joined |= {pair: cut for p in a for q in b for pair in ((p, q), (q, p))}
    return {(p, q): beta + joined[p, q] - s[p] for p, q in joined}


def loops(x, y, alpha, gallery=None, of_gallery=None):
    f = F.normalize(x)
    g = f if gallery is None else F.normalize(gallery)
    z = y if gallery is None else of_gallery
    terms = []
    for a, p, n in itertools.product(range(len(f)), range(len(g)), range(len(g))):
        if y[a] == z[p] and y[a] != z[n] and (gallery is not None or a != p):
            gap = (f[a] - g[p]).square().sum() - (f[a] - g[n]).square().sum()
            terms.append(torch.relu(gap + alpha[int(y[a]), int(z[n])]))
    return torch.stack(terms).mean() / 2 if terms else (x * 0).sum()


def built(build_loss, x, y, **arguments):
    loss = build_loss("htl", num_classes=CLASSES, **arguments).double()
    loss.begin_epoch(0, y, lambda ids=None: x if ids is None else x[ids])
    return loss


@pytest.mark.parametrize("sizes", [[3] * 5, [5, 1, 2, 4, 3]])
@pytest.mark.parametrize(("levels", "beta"), [(16, 0.1), (5, 0.0), (1, 0.5)])
def test_equals_the_loops(build_loss, make_batch, derive, same, sizes, levels, beta):
    x, y = data()
    loss = built(build_loss, x, y, levels=levels, beta=beta)
    alpha = margins(x, y, levels, beta)
    assert len({round(value, 6) for value in alpha.values()}) >= 3
    z, labels = make_batch(sizes, dim=6)
    labels = labels + 2
    wanted = derive(lambda z: loops(z, labels, alpha), z)
    same(derive(lambda z: loss(z, labels), z), wanted, 1e-6)  # the tree is kept in float32
    assert wanted[1].abs().max() > 1e-3


def test_a_gallery_equals_the_loops(build_loss, make_batch, derive, same):
    x, y = data()
    loss, alpha = built(build_loss, x, y), margins(x, y, 16, 0.1)
    z, labels = make_batch([4] * 5, dim=6)
    given = (z[6:], labels[6:])
    wanted = derive(lambda q: loops(q, labels[:6], alpha, *given), z[:6])
    same(derive(lambda q: loss(q, labels[:6], None, *given), z[:6]), wanted, 1e-6)


def test_without_a_tree_the_margin_is_beta(build_loss, make_batch, derive, same):
    z, labels = make_batch([3, 2, 4], dim=6)
    loss = build_loss("htl", num_classes=3, beta=0.3).double()
    alpha = dict.fromkeys(itertools.permutations(range(3), 2), 0.3)
    same(derive(lambda z: loss(z, labels), z), derive(lambda z: loops(z, labels, alpha), z), 1e-7)


def test_near_classes_are_joined_lower_and_narrow_ones_have_more_margin(build_loss):
    """Classes 0 and 1 are neighbours and 2 is far; 0 is narrower than 1."""
    centre = torch.eye(4)[[0, 0, 0, 0, 0, 0, 2, 2]]
    spread = (
        torch.eye(4)[[1, 3, 1, 1, 3, 3, 1, 3]]
        * torch.tensor([0, 0.1, 0.1, 0.3, 0.6, 0.3, 0, 0])[:, None]
    )
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    loss = built(build_loss, (centre + spread).double(), y)
    alpha = loss._margins(torch.arange(3), torch.arange(3))
    assert alpha[0, 1] < alpha[0, 2]
    assert alpha[1, 0] < alpha[0, 1]
    assert alpha[1, 2] < alpha[0, 2]


def test_the_gradient_is_the_derivative(build_loss, make_batch):
    x, y = data()
    loss = built(build_loss, x, y)
    z, labels = make_batch([3, 1, 4], dim=6)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), z.requires_grad_())


def test_the_tree_is_rebuilt_and_restored(build_loss, make_batch):
    x, y = data()
    z, labels = make_batch([3, 2, 4], dim=6)
    one, other = built(build_loss, x, y), build_loss("htl", num_classes=CLASSES).double()
    first = one(z, labels)
    one.begin_epoch(1, y, lambda ids=None: data(seed=1)[0])
    assert one(z, labels) != first
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(z, labels), one(z, labels))


def test_classes_without_images_or_with_one(build_loss, make_batch):
    """Classes 5 and 6 have no image, as when some are held out; every other has one."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    loss = build_loss("htl", num_classes=CLASSES).double()
    loss.begin_epoch(0, torch.arange(5), lambda ids=None: x)
    z, labels = make_batch([2] * 7, dim=6)
    value = loss(z, labels)
    assert value.isfinite()
    assert value > 0
    alone = loss._margins(torch.tensor([0, 5]), torch.tensor([6]))
    torch.testing.assert_close(alone, torch.full((2, 1), 4.1).double())
    for rows, same_label in ((0, []), (1, [0]), (1, [3])):
        loss.begin_epoch(1, torch.tensor(same_label).long(), lambda ids=None, k=rows: x[:k])
        assert torch.equal(loss(z, labels), value)  # a single class is no tree


@pytest.mark.parametrize("labels", [[0] * 4, [0, 1, 2, 3], [5]])
def test_a_batch_without_triplets_gives_zero(build_loss, derive, labels):
    x, y = data()
    loss = built(build_loss, x, y)
    value, gradient = derive(lambda z: loss(z, torch.tensor(labels)), x[: len(labels)])
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("arguments", [{"beta": -0.1}, {"levels": 0}])
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match=f"{next(iter(arguments))} must be at least"):
        build_loss("htl", **arguments)


def test_labels_without_a_leaf_are_refused(build_loss):
    with pytest.raises(UserError, match="this loss has weights for 2 classes"):
        build_loss("htl")(torch.ones(2, 4), torch.tensor([0, 2]))
