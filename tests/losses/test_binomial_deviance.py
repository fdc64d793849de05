"""Binomial deviance against loops, where softplus is linear and where it is not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.miners import MultiSimilarityMiner

from zoo import UserError


def loops(x, labels, alpha=2.0, beta=0.5, cost=25.0):
    f, y = F.normalize(x), labels.tolist()
    terms = {True: [], False: []}
    for a in range(len(y)):
        for b in range(len(y)):
            if a != b:
                same = y[a] == y[b]
                exponent = (-alpha if same else alpha * cost) * (f[a] @ f[b] - beta)
                terms[same].append(torch.log(1 + torch.exp(exponent)))
    return sum(torch.stack(t).mean() for t in terms.values() if t)


@pytest.mark.parametrize("sizes", [[4] * 5, [2, 5, 1, 3], [6], [1] * 5])
@pytest.mark.parametrize("settings", [{}, {"alpha": 5.0, "beta": 0.0, "negative_cost": 2.0}])
def test_value_and_gradient_equal_the_loops(build_loss, make_batch, derive, same, sizes, settings):
    x, labels = make_batch(sizes)
    loss = build_loss("binomial_deviance", **settings)
    wanted = derive(lambda z: loops(z, labels, *settings.values()), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    assert wanted[1].abs().max() > 1e-6


def test_gradcheck(build_loss, make_batch):
    x, labels = make_batch([3, 2, 4, 1], dim=4)
    loss = build_loss("binomial_deviance")
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.requires_grad_())


def test_softplus_is_exact_beyond_20(build_loss):
    """PyTorch's gives 25 for 25; it is 25 and 1.4e-11, and its derivative is less than 1."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    value = build_loss("binomial_deviance")(x, torch.tensor([0, 1]))
    assert float(value) == 25 + math.log1p(math.exp(-25))
    assert float(value) > 25


def test_at_beta_a_pair_costs_log_two(build_loss):
    x = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
    for labels in ([0, 0], [0, 1]):
        value = build_loss("binomial_deviance")(x, torch.tensor(labels))
        assert float(value) == pytest.approx(math.log(2))


def test_a_gallery_and_mined_pairs(build_loss, make_batch):
    x, labels = make_batch([4] * 4)
    loss = build_loss("binomial_deviance")
    everything = MultiSimilarityMiner(epsilon=2.0)(x, labels)
    torch.testing.assert_close(loss(x, None, everything), loss(x, labels))
    halves = loss(x[:8], labels[:8], ref_emb=x[8:], ref_labels=labels[8:])
    mirrored = loss(x[8:], labels[8:], ref_emb=x[:8], ref_labels=labels[:8])
    torch.testing.assert_close(halves, mirrored)


@pytest.mark.parametrize(
    "arguments", [{"alpha": 0.0}, {"negative_cost": -1.0}, {"beta": 2.0}, {"alpha": math.nan}]
)
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match="must be"):
        build_loss("binomial_deviance", **arguments)
