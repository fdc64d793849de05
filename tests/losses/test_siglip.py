"""SigLIP against loops, and with texts as its gallery the paper's loss."""

from __future__ import annotations

import pytest
import torch

from zoo import UserError

SIZES = {"balanced": [3] * 4, "unbalanced": [2, 5, 3, 1], "singles": [1, 1, 1], "one_class": [5]}


def loops(x, labels, log_scale, bias):
    f = x / x.norm(dim=1, keepdim=True)
    y, total = labels.tolist(), 0
    for i in range(len(y)):
        for j in range(len(y)):
            if i != j:
                z = 1 if y[i] == y[j] else -1
                logit = torch.exp(log_scale) * (f[i] @ f[j]) + bias
                total = total + torch.log(1 + torch.exp(-z * logit))
    return total / len(y)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("scale", "bias"), [(10.0, -10.0), (2.0, 0.5)])
def test_equals_the_loops(build_loss, make_batch, same, sizes, scale, bias):
    x, labels = make_batch(sizes, dim=8, spread=0.7)
    loss = build_loss("siglip", scale=scale, bias=bias).double()
    own = [p.detach().clone().requires_grad_() for p in (loss.log_scale, loss.bias)]
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = loss(a, labels), loops(b, labels, *own)
    gradients = torch.autograd.grad(found, (a, loss.log_scale, loss.bias))
    assert all(g.abs().max() > 1e-5 for g in gradients)
    expected = torch.autograd.grad(wanted, (b, *own))
    same((found.detach(), *gradients), (wanted.detach(), *expected), 1e-12)


def test_texts_as_a_gallery_give_the_papers_loss(build_loss):
    """An image matches the text of its own number; the sum over all pairs, divided by N."""
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    f, g = (x / x.norm(dim=1, keepdim=True) for x in (images, texts))
    logits = 10 * f @ g.T - 10
    signs = 2 * torch.eye(5) - 1
    wanted = -torch.log(torch.sigmoid(signs * logits)).sum() / 5
    number = torch.arange(5)
    value = build_loss("siglip").double()(images, number, ref_emb=texts, ref_labels=number)
    assert float(value.detach()) == pytest.approx(float(wanted), rel=1e-6)


def test_pairs_that_are_mined_twice_count_twice(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=4)
    f = x / x.norm(dim=1, keepdim=True)
    index = [torch.tensor(part) for part in ([0, 0, 1], [2, 2, 3], [4, 4, 4, 5], [6, 6, 6, 7])]
    logits = 10 * (f[torch.cat(index[::2])] * f[torch.cat(index[1::2])]).sum(1) - 10
    signs = torch.tensor([1, 1, 1, -1, -1, -1, -1])
    value = build_loss("siglip").double()(x, labels, tuple(index)).detach()
    wanted = -torch.log(torch.sigmoid(signs * logits)).sum() / len(x)
    assert float(value) == pytest.approx(float(wanted), rel=1e-6)


def test_at_its_start_negatives_cost_little(build_loss):
    """100 orthogonal images: the bias of -10 makes a sum of 99 log(1 + exp(-10))."""
    value = build_loss("siglip")(torch.eye(100), torch.arange(100)).detach()
    assert float(value) == pytest.approx(99 * 4.53989e-5, rel=1e-4)


def test_it_may_keep_its_scale_and_bias(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=8)
    fixed, learned = build_loss("siglip", learn=False), build_loss("siglip")
    assert not [p for p in fixed.parameters() if p.requires_grad]
    assert len([p for p in learned.parameters() if p.requires_grad]) == 2
    torch.testing.assert_close(fixed(x, labels), learned(x, labels).detach())


@pytest.mark.parametrize("x", [torch.ones(6, 4), torch.zeros(6, 4), torch.eye(6)[:, :4] * 1e30])
def test_never_nan(build_loss, derive, x):
    y = torch.tensor([0, 0, 1, 1, 0, 1])
    value, gradient = derive(lambda z: build_loss("siglip", scale=1e4)(z, y), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_one_image_gives_zero_with_a_graph(build_loss, derive):
    value, gradient = derive(lambda z: build_loss("siglip")(z, torch.tensor([3])), torch.ones(1, 4))
    assert value == 0
    assert not gradient.any()


def test_a_scale_of_0_is_refused(build_loss):
    with pytest.raises(UserError, match="scale must be positive"):
        build_loss("siglip", scale=0.0)
