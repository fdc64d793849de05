"""Task conditioning: the network in loops, its limit TADAM, and that it helps where it should."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo import UserError
from zoo.losses.tadam_conditioned import _mean_of_classes


def build(size=5, seed=0, factor=0.3, **arguments):
    torch.manual_seed(seed)
    loss = zoo.build("losses", "tadam_conditioned", embedding_size=size, **arguments).double()
    with torch.no_grad():
        loss.factor.fill_(factor)
    return loss


def scales(loss, x, labels):
    """The scale of each number, from the mean of the class means."""
    means = [x[labels == c].mean(0) for c in labels.unique()]
    z = sum(means) / len(means)
    first, second, third = loss.task.layers
    z = first.weight @ z + first.bias
    z = z * torch.sigmoid(z)
    out = second.weight @ z + second.bias + z
    z = out * torch.sigmoid(out)
    z = third.weight @ z + third.bias + z
    return 1 + loss.factor * z


@pytest.mark.parametrize("sizes", [[3] * 3, [2, 4, 1], [4], [1] * 4])
def test_it_is_tadam_on_scaled_embeddings(make_batch, derive, same, sizes):
    x, labels = make_batch(sizes, dim=5, length=1.0)
    loss, plain = build(), zoo.build("losses", "tadam").double()

    def wanted(z):
        return plain(scales(loss, z, labels) * z, labels) + 0.01 * loss.factor**2

    same(derive(lambda z: loss(z, labels), x), derive(wanted, x), 1e-12)
    parameters = [*loss.task.parameters(), loss.factor]
    found = torch.autograd.grad(loss(x, labels), parameters)
    others = torch.autograd.grad(wanted(x), parameters)
    torch.testing.assert_close(found, others)


def test_a_gallery_makes_the_task(make_batch):
    x, labels = make_batch([3] * 3, dim=5, length=1.0)
    gallery, gallery_labels = make_batch([2, 1, 4], dim=5, seed=1, length=1.0)
    loss, plain = build(penalty=0.0), zoo.build("losses", "tadam").double()
    scale = scales(loss, gallery, gallery_labels)
    value = loss(x, labels, ref_emb=gallery, ref_labels=gallery_labels)
    wanted = plain(scale * x, labels, ref_emb=scale * gallery, ref_labels=gallery_labels)
    torch.testing.assert_close(value, wanted)


def test_at_first_it_is_tadam(make_batch, derive, same):
    x, labels = make_batch([3, 4, 2], dim=5)
    loss = zoo.build("losses", "tadam_conditioned", embedding_size=5).double()
    plain = zoo.build("losses", "tadam").double()
    same(derive(lambda z: loss(z, labels), x), derive(lambda z: plain(z, labels), x), 0)
    loss(x, labels).backward()
    assert loss.factor.grad.abs() > 1e-6  # and begins to learn


def test_the_task_is_the_mean_of_the_class_means(make_batch):
    x, labels = make_batch([3, 5, 1], dim=5)
    wanted = torch.stack([x[labels == c].mean(0) for c in range(3)]).mean(0)
    torch.testing.assert_close(_mean_of_classes(x, labels), wanted)


def test_a_shift_would_cancel(make_batch):
    x, labels = make_batch([3, 5, 1], dim=5)
    plain = zoo.build("losses", "tadam").double()
    torch.testing.assert_close(plain(x + torch.arange(5), labels), plain(x, labels))


@pytest.mark.slow
def test_it_learns_which_numbers_matter_in_a_task(make_batch):
    """Two tasks share an embedding; in each, half of the numbers are noise."""
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for first in (True, False):
        centres = torch.randn(4, 3, generator=generator).double() * 2
        labels = torch.arange(4).repeat_interleave(4)
        noise = 2 * torch.randn(16, 3, generator=generator).double()
        useful = centres[labels] + 0.2 * torch.randn(16, 3, generator=generator)
        parts = [useful, noise] if first else [noise, useful]
        sign = torch.full((16, 1), 2.0 if first else -2.0).double()  # tells which task it is
        tasks.append((torch.cat([*parts, sign], 1), labels))
    values = {}
    for conditioned in (False, True):
        loss = build(7, factor=0.5 if conditioned else 0.0, penalty=0.0)
        learns = list(loss.parameters()) if conditioned else [loss.alpha]
        for _ in range(150):
            value = sum(loss(x, labels) for x, labels in tasks)
            gradients = torch.autograd.grad(value, learns)
            with torch.no_grad():
                for parameter, gradient in zip(learns, gradients, strict=True):
                    parameter -= 0.02 * gradient
        values[conditioned] = float(value.detach())
    assert values[True] < 0.5 * values[False]


def test_a_negative_penalty_is_refused():
    with pytest.raises(UserError, match="penalty must be at least 0"):
        build(penalty=-1.0)
