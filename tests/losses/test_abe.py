"""The loss of an attention-based ensemble against loops, and what its divergence does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError
from zoo.registry import assemble

SIZES = [4, 4, 3]


def build(level_sizes=SIZES, **arguments):
    return zoo.build("losses", "abe", level_sizes=list(level_sizes), **arguments)


def divergence(x, sizes=SIZES, margin=1.0):
    f = [F.normalize(part) for part in x.split(list(sizes), 1)]
    total = 0
    for p in range(len(f)):
        for q in range(p + 1, len(f)):
            images = []
            for a, b in zip(f[p], f[q], strict=True):
                shorter = min(len(a), len(b))
                distance = 2 - 2 * (a[:shorter] @ b[:shorter])
                images.append(F.relu(margin - distance))
            total = total + torch.stack(images).mean()
    return total


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [5], [1] * 4])
@pytest.mark.parametrize("settings", [{}, {"divergence": 0.3, "margin": 2.5}])
def test_value_and_gradient_are_those_of_the_learners_and_the_divergence(
    make_batch, derive, same, build_loss, sizes, settings
):
    x, labels = make_batch(sizes, dim=11)
    metric = build_loss("contrastive")

    def wanted(z):
        learners = sum(metric(part, labels) for part in z.split(SIZES, 1))
        weight = settings.get("divergence", 1.0)
        return learners + weight * divergence(z, margin=settings.get("margin", 1.0))

    loss = build(**settings)
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(wanted, x), 1e-12)
    assert found[1].abs().max() > 1e-6


def test_equal_learners_cost_the_margin_and_opposite_ones_nothing():
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(5)
    for other, cost in ((x, 1.0), (-x, 0.0)):
        both = torch.cat([x, other], 1)
        value = build([4, 4])(both, labels) - build([4, 4], divergence=0.0)(both, labels)
        assert float(value) == pytest.approx(cost)


def test_descent_pushes_learners_apart(derive):
    """From one embedding twice, with a little noise: the angle between the learners grows."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(6, 4, generator=generator).double()
    x = torch.cat([first, first + 0.1 * torch.randn(6, 4, generator=generator)], 1)
    loss, labels = build([4, 4]), torch.arange(6)
    for _ in range(100):
        x = x - 2 * derive(lambda z: loss(z, labels), x)[1]
    cosines = F.cosine_similarity(x[:, :4], x[:, 4:])
    assert (cosines < 0.6).all()  # 0.5 is where the hinge ends


def test_any_loss_may_train_the_learners(make_batch, build_loss):
    x, labels = make_batch([3, 4, 2], dim=11)
    margin = assemble(
        "losses",
        "abe",
        {"loss": {"name": "multi_similarity"}, "divergence": 0.0},
        {"level_sizes": SIZES, "embedding_size": 11, "num_classes": 3},
    )
    metric = build_loss("multi_similarity")
    wanted = sum(metric(part, labels) for part in x.split(SIZES, 1))
    torch.testing.assert_close(margin(x, labels), wanted)


def test_learners_have_weights_of_their_own(make_batch, build_loss):
    x, labels = make_batch([3, 4, 2], dim=8)
    metric = build_loss("proxy_nca", num_classes=3, embedding_size=4)
    loss = build([4, 4], loss=metric).double()
    proxies = [one.proxies for one in loss.losses]
    assert proxies[0] is not proxies[1]
    loss(x, labels).backward()
    assert all(p.grad.abs().max() > 0 for p in proxies)
    assert not torch.equal(proxies[0].grad, proxies[1].grad)


def test_weights_of_the_whole_embedding_are_refused():
    sizes = {"level_sizes": [4, 4], "embedding_size": 8, "num_classes": 3}
    with pytest.raises(UserError, match="has weights for embeddings of 8 numbers, which are here"):
        assemble("losses", "abe", {"loss": "proxy_nca"}, sizes)


@pytest.mark.parametrize(
    ("arguments", "says"), [({"divergence": -1.0}, "at least 0"), ({"margin": 0.0}, "positive")]
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
