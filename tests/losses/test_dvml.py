"""DVML: its four terms in loops, which of them train what, and that noise is learned."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo import UserError

SIZES = [4, 6]
TERMS = {"kl": 0.0, "reconstruction": 0.0, "synthetic": 0.0, "invariant": 0.0}


def build(level_sizes=SIZES, seed=0, **arguments):
    torch.manual_seed(seed)
    arguments = {"samples": 3, "hidden": 7, **arguments}
    loss = zoo.build("losses", "dvml", level_sizes=list(level_sizes), **arguments).double()
    with torch.no_grad():
        loss.encoder.bias += 0.1  # as after some training
    return loss


def call(loss, x, labels):
    torch.manual_seed(3)
    return loss(x, labels)


def loops(loss, metric, x, labels):
    """The four terms, image by image and number by number."""
    size, features = loss.level_sizes[0], loss.level_sizes[-1]
    torch.manual_seed(3)
    noise = torch.randn(loss.samples, len(x), size).double()
    z = F.normalize(x[:, :size]) * math.sqrt(size)
    y = F.normalize(x[:, -features:]) * math.sqrt(features)
    kl, missed, drawn = 0, 0, []
    first, _, second = loss.decoder
    for i in range(len(x)):
        out = loss.encoder.weight @ y[i] + loss.encoder.bias
        mean, log_variance = out[:size], out[size:]
        for m, s in zip(mean, log_variance, strict=True):
            prior = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
            normal = torch.distributions.Normal(m, (s / 2).exp())
            kl = kl + torch.distributions.kl_divergence(normal, prior) / size / len(x)
        of_image = []
        for t in range(loss.samples):
            v = mean + noise[t, i] * (log_variance / 2).exp()
            start = loss.release * z[i] + (1 - loss.release) * z[i].detach() + v
            hidden = F.relu(first.weight @ start + first.bias)
            back = second.weight @ hidden + second.bias
            wanted = y[i] if len(loss.level_sizes) > 1 else y[i].detach()
            missed = missed + (wanted - back).square().mean() / loss.samples / len(x)
            of_image.append(z[i] + v)
        drawn.append(torch.stack(of_image))
    varied = sum(metric(v, labels) for v in torch.stack(drawn, 1)) / loss.samples
    total = loss.kl * kl + loss.reconstruction * missed
    return total + loss.synthetic * varied + loss.invariant * metric(z, labels)


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [4], [1] * 4, [1]])
@pytest.mark.parametrize("levels", [SIZES, [10]])
@pytest.mark.parametrize("settings", [{}, {"release": 0.7, "kl": 0.3, "synthetic": 2.0}])
def test_value_and_gradients_equal_the_loops(
    make_batch, derive, same, build_loss, sizes, levels, settings
):
    x, labels = make_batch(sizes, dim=10)
    loss, metric = build(levels, **settings), build_loss("triplet_semihard")
    wanted = derive(lambda z: loops(loss, metric, z, labels), x)
    same(derive(lambda z: call(loss, z, labels), x), wanted, 1e-12)
    parameters = list(loss.parameters())
    found = torch.autograd.grad(call(loss, x, labels), parameters)
    others = torch.autograd.grad(loops(loss, metric, x, labels), parameters)
    torch.testing.assert_close(found, others)


def test_in_float32_the_gradients_are_nearly_the_same(make_batch):
    x, labels = make_batch([3] * 3, dim=10)
    found = []
    for dtype in (torch.float64, torch.float32):
        loss, z = build([10]).to(dtype), x.to(dtype, copy=True).requires_grad_()
        call(loss, z, labels).backward()
        found.append([z.grad.double(), *(p.grad.double() for p in loss.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-4 * one.norm()


def test_the_invariant_alone_is_the_loss(make_batch, derive, same, build_loss):
    x, labels = make_batch([3] * 3, dim=10)
    metric = build_loss("triplet_semihard")
    loss = build([10], **{**TERMS, "invariant": 1.0})
    wanted = derive(lambda z: metric(z, labels), x)
    same(derive(lambda z: call(loss, z, labels), x), wanted, 1e-12)


def test_the_decoder_reaches_the_embedding_only_in_the_second_phase(make_batch, derive):
    x, labels = make_batch([3] * 3, dim=10)
    for release in (0.0, 0.5, 1.0):
        loss = build(**{**TERMS, "reconstruction": 1.0}, release=release)
        gradient = derive(lambda z, loss=loss: call(loss, z, labels), x)[1][:, :4]
        if release == 0.5:
            half = gradient
        elif release == 0:
            assert not gradient.any()
    assert gradient.abs().max() > 1e-6
    torch.testing.assert_close(half, gradient / 2)


@pytest.mark.slow
def test_with_kl_alone_the_noise_becomes_standard_normal(make_batch):
    x, labels = make_batch([3] * 3, dim=10)
    loss = build([10], **{**TERMS, "kl": 1.0})
    for _ in range(400):
        loss.zero_grad()
        value = call(loss, x, labels)
        value.backward()
        with torch.no_grad():
            for parameter in loss.encoder.parameters():
                parameter -= 0.3 * parameter.grad
    assert float(value.detach()) < 0.01
    mean, log_variance = loss.encoder(F.normalize(x) * 10**0.5).detach().chunk(2, 1)
    assert mean.abs().mean() < 0.1
    assert log_variance.abs().mean() < 0.2


@pytest.mark.slow
def test_with_the_decoder_the_noise_becomes_small(make_batch):
    """To give back the features, it has to be less than the prior's."""
    x, labels = make_batch([3] * 3, dim=10)
    loss = build([10], **{**TERMS, "kl": 0.01, "reconstruction": 1.0}, hidden=32)
    for _ in range(400):
        loss.zero_grad()
        loss(x, labels).backward()
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter -= 0.1 * parameter.grad
    y = F.normalize(x) * 10**0.5
    log_variance = loss.encoder(y).detach()[:, 10:]
    assert float(log_variance.mean()) < -0.5


def test_the_random_numbers_are_those_of_torch(make_batch):
    x, labels = make_batch([3] * 3, dim=10)
    loss = build()
    assert call(loss, x, labels) == call(loss, x, labels)
    assert loss(x, labels) != call(loss, x, labels)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"release": 1.5}, "release must be from 0 to 1"),
        ({"samples": 0}, "samples=0 and hidden=7 must be at least 1"),
        ({"kl": -1.0}, "kl must be at least 0"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
