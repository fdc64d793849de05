"""HDML: each objective in loops, the pull of Eq. 5 and 6, and what the running means do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError
from zoo.losses._shared import masks
from zoo.losses._triplets import draw_triplets
from zoo.registry import assemble


def build(seed=0, metric=0.2, generation=1.5, **arguments):
    """Build a loss in which both running means are known."""
    torch.manual_seed(seed)
    sizes = {"embedding_size": 6, "num_classes": 4}
    loss = assemble("losses", "hdml", {"hidden": 7, **arguments}, sizes).double()
    loss.metric.mean.fill_(metric)
    loss.generation.mean.fill_(generation)
    torch.nn.init.normal_(loss.generator[-1].weight, std=0.3)  # as after some training
    return loss


def call(loss, x, labels):
    torch.manual_seed(3)
    return loss(x, labels)


def generate(loss, x):
    first, _, second = loss.generator
    return x + F.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias


def triplet_loss(a, p, n, margin):
    return F.relu((a - p).square().sum() - (a - n).square().sum() + margin)


def pull(loss, a, p, n):
    near, far = (a - p).norm(), (a - n).norm()
    if far <= near:
        return n
    distance = near + (far - near) * torch.exp(-loss.alpha / loss.metric.mean)
    return a + (n - a) * (distance / far).detach()


def objectives(loss, x, labels):
    """Return J_metric, J_gen and the objective of the classifier, triplet by triplet."""
    torch.manual_seed(3)
    f = F.normalize(x)
    drawn = draw_triplets(masks(x, labels, None, x, labels))
    real, synthetic, soft = [], [], []
    given_back = torch.stack([generate(loss, row) for row in f])
    scores = loss.classifier(torch.stack(list(given_back)))
    for a in range(len(x)):
        if not drawn.valid[a]:
            continue
        p, n = int(drawn.positive[a]), int(drawn.negative[a])
        h = pull(loss, f[a], f[p], f[n])
        real.append(triplet_loss(f[a], f[p], f[n], loss.margin))
        made = [F.normalize(generate(loss, z), dim=0) for z in (f[a], f[p], h)]
        synthetic.append(triplet_loss(*made, loss.margin))
        entropies = [F.cross_entropy(scores[i], labels[i]) for i in (a, p)]
        entropies.append(F.cross_entropy(loss.classifier(generate(loss, h)), labels[n]))
        soft.append(sum(entropies) / 3)
    count = max(1, len(real))
    share = math.exp(-loss.beta / float(loss.generation.mean))
    nothing = x.sum() * 0
    metric = nothing + share * sum(real) / count + (1 - share) * sum(synthetic) / count
    recovery = (f - given_back).square().sum(1).mean()
    generation = (1 - loss.softness) * recovery + loss.softness * sum(soft) / count
    return metric, generation, F.cross_entropy(loss.classifier(f), labels)


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [5], [1] * 4, [1]])
@pytest.mark.parametrize("settings", [{}, {"margin": 2.0, "softness": 0.2, "beta": 4.0}])
def test_each_network_has_the_gradient_of_its_own_objective(
    make_batch, derive, same, sizes, settings
):
    x, labels = make_batch(sizes, dim=6)
    wanted = derive(lambda z: objectives(build(**settings), z, labels)[0], x)
    same(derive(lambda z: call(build(**settings), z, labels), x), wanted, 1e-12)
    loss, other = build(**settings), build(**settings)
    call(loss, x, labels).backward()
    _, generation, classification = objectives(other, x, labels)
    for network, objective in (("generator", generation), ("classifier", classification)):
        mine = getattr(loss, network).parameters()
        theirs = list(getattr(other, network).parameters())
        gradients = torch.autograd.grad(objective, theirs, retain_graph=True)
        for parameter, gradient in zip(mine, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
            assert gradient.abs().max() > 1e-6


@pytest.mark.parametrize("metric", [1e-3, 0.2, 1e6])
def test_a_pulled_negative_is_between_the_distances_of_the_positive_and_its_own(metric):
    loss = build(metric=metric)
    f = F.normalize(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)).double())
    a, p, n = f.split(10)
    pulled = loss._pull(a, p, n)
    near, far, now = ((a - y).norm(dim=1) for y in (p, n, pulled))
    stays = math.exp(-0.1 / metric)
    farther = far > near
    assert 0 < farther.sum() < 10
    assert torch.equal(pulled[~farther], n[~farther])
    torch.testing.assert_close(now[farther], (near + stays * (far - near))[farther])
    along = F.cosine_similarity(pulled - a, n - a)
    torch.testing.assert_close(along, torch.ones_like(along))


def test_the_better_the_embedding_the_harder_the_negatives():
    f = F.normalize(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)).double())
    a, p, n = f.split(10)
    distances = [(build(metric=m)._pull(a, p, n) - a).norm(dim=1).mean() for m in (1, 0.1, 0.01)]
    assert distances[0] > distances[1] > distances[2]


def test_a_poor_generator_leaves_the_real_loss(make_batch):
    x, labels = make_batch([3] * 3, dim=6)
    real = call(build(synthetic=False), x, labels)
    torch.testing.assert_close(call(build(generation=1e9), x, labels), real)
    assert abs(call(build(generation=0.1), x, labels) - real) > 1e-3


@pytest.mark.slow
def test_the_means_are_those_of_64_batches_and_are_saved(make_batch):
    x, labels = make_batch([3] * 3, dim=6)
    loss = build(metric=1e6, generation=1e6)
    seen = []
    for step in range(130):
        assert float(loss.metric.mean) == pytest.approx(
            1e6 if step < 64 else sum(seen[: step // 64 * 64][-64:]) / 64
        )
        torch.manual_seed(step)
        drawn = draw_triplets(masks(x, labels, None, x, labels))
        f = F.normalize(x)
        terms = [
            triplet_loss(f[a], f[p], f[n], 0.5)
            for a, (p, n, _) in enumerate(zip(*drawn, strict=True))
        ]
        seen.append(float(torch.stack(terms).mean()))
        torch.manual_seed(step)
        loss(x, labels)
    restored = build(seed=1)
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(restored.metric.mean, loss.metric.mean)
    assert call(restored, x, labels) == call(loss, x, labels)


def test_batches_without_triplets_and_evaluation_do_not_count(make_batch):
    x, labels = make_batch([1] * 4, dim=6)
    loss = build()
    loss(x, labels)
    assert loss.metric.number == 0
    x, labels = make_batch([3] * 3, dim=6)
    loss.eval()(x, labels)
    assert loss.metric.number == 0
    loss.train()(x, labels)
    assert loss.metric.number == 1


@pytest.mark.slow
def test_the_generator_learns_to_give_back_and_the_classifier_to_tell(make_batch):
    x, labels = make_batch([6] * 4, dim=6, spread=0.3)
    loss = build(hidden=32)
    before = [float(v.detach()) for v in objectives(loss, x, labels)[1:]]
    for _ in range(150):
        loss.zero_grad()
        call(loss, x, labels).backward()
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter -= 0.5 * parameter.grad
    after = [float(v.detach()) for v in objectives(loss, x, labels)[1:]]
    assert after[0] < 0.5 * before[0]
    assert after[1] < 0.5 * before[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"softness": 1.5}, "softness must be from 0 to 1"),
        ({"hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(UserError, match="weights for 4 classes"):
        build()(torch.randn(2, 6).double(), torch.tensor([0, 4]))
