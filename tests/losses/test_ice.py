"""ICE against a literal transcription of the paper, its limits and its identities."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner

import zoo
from zoo.losses.ice import _match

BATCHES = {
    "6x10": [10] * 6,
    "30x2": [2] * 30,
    "unbalanced": [2, 5, 3, 7],
    "with_a_single": [4, 1, 3],
}


def make_batch(sizes, dim=16, seed=0, dtype=torch.float64, spread=1.0):
    """Return clustered raw embeddings, in shuffled order, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    centres = torch.randn(len(sizes), dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    order = torch.randperm(len(labels), generator=generator)
    x = (centres[labels] + spread * noise)[order] * 3
    return x.to(dtype), labels[order]


def literal(x, labels, scale, anchor_gradient, reweight=True):
    """Transcribe Eq. 3 to 15 in Python loops: (mean of -log p, gradient wrt the raw x)."""
    n = len(x)
    y = labels.tolist()
    norms = x.norm(dim=1)
    f = [x[a] / norms[a] for a in range(n)]
    s = [[float(f[a] @ f[b]) for b in range(n)] for a in range(n)]
    positives = [[i for i in range(n) if i != a and y[i] == y[a]] for a in range(n)]
    negatives = [[j for j in range(n) if y[j] != y[a]] for a in range(n)]
    valid = [a for a in range(n) if positives[a] and negatives[a]]
    pairs = sum(len(positives[a]) for a in valid)
    grad = torch.zeros_like(x)
    nll = 0.0
    for a in valid:
        p_pos, p_neg = {}, dict.fromkeys(negatives[a], 0.0)
        for i in positives[a]:
            denominator = math.exp(scale * s[a][i])
            for j in negatives[a]:
                denominator += math.exp(scale * s[a][j])
            p_pos[i] = math.exp(scale * s[a][i]) / denominator
            nll -= math.log(p_pos[i])
            for j in negatives[a]:
                p_neg[j] += math.exp(scale * s[a][j]) / denominator
        w_pos = {i: 1 - p for i, p in p_pos.items()}
        if min(w_pos.values()) < 1e-3:  # 1 - p cancels: take the equal sum over the negatives
            for i in positives[a]:
                gaps = [math.exp(scale * (s[a][j] - s[a][i])) for j in negatives[a]]
                w_pos[i] = sum(gaps) / (1 + sum(gaps))
        everything = sum(w_pos.values()) + sum(p_neg.values())
        factor = 1 / len(valid) / everything if reweight else scale / pairs
        for i, w in w_pos.items():
            grad[i] -= factor * w * f[a]
            if anchor_gradient:
                grad[a] -= factor * w * f[i]
        for j, w in p_neg.items():
            grad[j] += factor * w * f[a]
            if anchor_gradient:
                grad[a] += factor * w * f[j]
    raw = torch.stack([(grad[b] - (grad[b] @ f[b]) * f[b]) / norms[b] for b in range(n)])
    return nll / pairs, raw


def run(x, labels, **arguments):
    x = x.clone().requires_grad_()
    value = zoo.build("losses", "ice", **arguments)(x, labels)
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("scale", [1, 16, 64])
@pytest.mark.parametrize("anchor_gradient", [True, False])
@pytest.mark.parametrize("reweight", [True, False])
def test_equals_the_literal_transcription(sizes, scale, anchor_gradient, reweight):
    x, labels = make_batch(sizes)
    value, grad = run(x, labels, scale=scale, anchor_gradient=anchor_gradient, reweight=reweight)
    wanted_value, wanted = literal(x, labels, scale, anchor_gradient, reweight)
    assert grad.abs().max() > 1e-4
    torch.testing.assert_close(grad, wanted, rtol=0, atol=1e-12)
    assert float(value) == pytest.approx(wanted_value, rel=1e-12)


def test_float32_is_right_on_a_well_separated_batch_where_rescaling_ntxent_is_not():
    x, labels = make_batch([2] * 90, dim=512, spread=0.35)
    for anchor_gradient in (True, False):
        _, wanted = run(x, labels, anchor_gradient=anchor_gradient)
        _, grad = run(x.float(), labels, anchor_gradient=anchor_gradient)
        assert (grad - wanted).norm() / wanted.norm() < 1e-5
    # With two images per class ICE is NTXent, each anchor's gradient divided by s (1 - p).
    _, wanted = run(x, labels)
    raw = x.float().requires_grad_()
    miner_free = NTXentLoss(temperature=1 / 64)
    s = F.normalize(raw.detach()) @ F.normalize(raw.detach()).T * 64
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    p = 1 / (1 + torch.exp(s.masked_fill(same, -torch.inf).logsumexp(1) - s[positive]))
    rescaled = torch.zeros_like(raw)
    for a in range(len(x)):
        pair = (torch.tensor([a]), positive[a].nonzero()[0])
        negatives = (~same[a]).nonzero()[:, 0]
        one = miner_free(raw, labels, (*pair, torch.full_like(negatives, a), negatives))
        (gradient,) = torch.autograd.grad(one, raw)
        rescaled += gradient / (2 * len(x) * 64 * (1 - p[a]))
    error = (rescaled.double() - wanted).norm() / wanted.norm()
    assert not error < 0.1


def weights(x, labels, scale):
    """Return the signed weights (positives minus, negatives plus), and both masks."""
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    logits = scale * F.normalize(x) @ F.normalize(x).T
    matched = _match(logits, positive.to(x.dtype), same.to(x.dtype), True)
    return matched.weights / (2 * float(matched.anchors)), positive, ~same


@pytest.mark.parametrize("sizes", [[10] * 6, [2] * 30, [2, 5, 3, 7]])
@pytest.mark.parametrize("scale", [1, 16, 64])
def test_the_positives_and_the_negatives_of_an_anchor_weigh_the_same(sizes, scale):
    x, labels = make_batch(sizes)
    w, positive, negative = weights(x, labels, scale)
    half = torch.full((len(x),), 1 / (2 * len(x)), dtype=x.dtype)
    torch.testing.assert_close(-(w * positive).sum(1), half, rtol=0, atol=1e-15)
    torch.testing.assert_close((w * negative).sum(1), half, rtol=0, atol=1e-15)
    assert (w.masked_fill(positive | negative, 0) == 0).all()


def test_two_images_per_class_is_the_papers_naive_case():
    """Eq. 16 and 17; and the gradient is that of mean_a [Z_a / s - S_ap] / 2."""
    x, labels = make_batch([2] * 30)
    w, positive, _ = weights(x, labels, 64)
    assert (w[positive] == -1 / 120).all()
    raw = x.clone().requires_grad_()
    s = F.normalize(raw) @ F.normalize(raw).T
    same = labels[:, None] == labels[None, :]
    z = (64 * s).masked_fill(same, -torch.inf).logsumexp(1)
    ((z / 64 - s[positive]).mean() / 2).backward()
    _, grad = run(x, labels)
    torch.testing.assert_close(grad, raw.grad, rtol=0, atol=1e-14)


def test_scale_to_zero_weighs_all_alike():
    x, labels = make_batch([4] * 5)
    w, positive, negative = weights(x, labels, 1e-9)
    torch.testing.assert_close(-w[positive], torch.full((60,), 1 / 40 / 3).double())
    torch.testing.assert_close(w[negative], torch.full((320,), 1 / 40 / 16).double())


def test_scale_to_infinity_sees_the_hardest():
    x, labels = make_batch([4] * 5, spread=1.2)
    w, positive, negative = weights(x, labels, 1e7)
    s = F.normalize(x) @ F.normalize(x).T
    hardest = s.masked_fill(~negative, -torch.inf).max(1)
    assert torch.equal((w * negative).argmax(1), hardest.indices)
    violating = positive & (s < hardest.values[:, None])
    worst = s.masked_fill(~positive, torch.inf).argmin(1)
    assert 0 < violating.any(1).sum() < len(x)  # both cases are seen
    for a in range(len(x)):
        if violating[a].any():
            wanted = violating[a] / violating[a].sum()
        else:
            wanted = F.one_hot(worst[a], len(x))
        torch.testing.assert_close(-w[a] * positive[a] * 2 * len(x), wanted.double())


@pytest.mark.parametrize("reweight", [True, False])
@pytest.mark.parametrize("block", [1, 7, 59, 60, 1000])
def test_blocks_change_nothing(block, reweight):
    x, labels = make_batch([10] * 6)
    value, grad = run(x, labels, reweight=reweight)
    blocked_value, blocked = run(x, labels, reweight=reweight, block=block)
    torch.testing.assert_close(blocked, grad, rtol=0, atol=1e-15)
    torch.testing.assert_close(blocked_value, value)


def test_the_plain_gradient_is_the_derivative_and_the_papers_is_not():
    x, labels = make_batch([3] * 4, dim=5)
    x.requires_grad_()

    def loss(reweight):
        built = zoo.build("losses", "ice", scale=8.0, reweight=reweight)
        return lambda x: built(x, labels)

    assert torch.autograd.gradcheck(loss(False), x)
    assert not torch.autograd.gradcheck(loss(True), x, raise_exception=False)


def test_the_plain_loss_equals_pmls_ntxent():
    x, labels = make_batch([5] * 6)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    a = zoo.build("losses", "ice", scale=16.0, reweight=False)(mine, labels)
    b = NTXentLoss(temperature=1 / 16)(theirs, labels)
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_gallery_that_holds_the_batch_itself():
    """With ref_emb nothing is excluded; a gallery of other images equals the block of a batch."""
    x, labels = make_batch([4] * 5)
    queries, gallery = x[:7].clone().requires_grad_(), x[7:].clone().requires_grad_()
    zoo.build("losses", "ice", reweight=False)(
        queries, labels[:7], ref_emb=gallery, ref_labels=labels[7:]
    ).backward()
    a, b = x[:7].clone().requires_grad_(), x[7:].clone().requires_grad_()
    NTXentLoss(temperature=1 / 64)(a, labels[:7], ref_emb=b, ref_labels=labels[7:]).backward()
    torch.testing.assert_close(queries.grad, a.grad)
    torch.testing.assert_close(gallery.grad, b.grad)


class AnyLossMemory(CrossBatchMemory):
    """PML admits losses to its memory by a list of class names; a subclass lifts that."""

    @classmethod
    def check_loss_support(cls, loss_name):
        pass


def test_works_in_pmls_cross_batch_memory_and_with_miners():
    x, labels = make_batch([4] * 5, dtype=torch.float32)
    memory = AnyLossMemory(zoo.build("losses", "ice"), embedding_size=16, memory_size=64)
    for _ in range(3):
        assert torch.isfinite(memory(x.requires_grad_(), labels))
    mined = MultiSimilarityMiner(0.1)(x, labels)
    value = zoo.build("losses", "ice")(x, labels, mined)
    value.backward()
    assert torch.isfinite(x.grad).all()
    assert len(mined[0]) < 60
    everything = NTXentLoss(temperature=1 / 64)(x, labels, mined)
    torch.testing.assert_close(value, everything)


def test_triplets_stand_for_their_pairs():
    x, labels = torch.eye(3) + 0.2, torch.tensor([0, 0, 1])
    triplet = tuple(torch.tensor([i]) for i in (0, 1, 2))
    loss = zoo.build("losses", "ice", scale=1.0)
    s = F.normalize(x) @ F.normalize(x).T
    assert float(loss(x, labels, triplet)) == pytest.approx(
        math.log1p(math.exp(float(s[0, 2] - s[0, 1])))
    )


DEGENERATE = {
    "one_image": ([[1.0, 2.0]], [3]),
    "one_class": ([[1.0, 2.0], [2.0, 1.0], [0.5, 0.1]], [7, 7, 7]),
    "no_positives": ([[1.0, 2.0], [2.0, 1.0], [0.5, 0.1]], [0, 1, 2]),
}


@pytest.mark.parametrize(("x", "labels"), DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("reweight", [True, False])
def test_nothing_to_learn_from_gives_zero_with_a_graph(x, labels, reweight):
    value, grad = run(torch.tensor(x), torch.tensor(labels), reweight=reweight)
    assert value == 0
    assert (grad == 0).all()


HARD = {
    "collapsed": torch.ones(8, 4),
    "antipodal": torch.tensor([1.0, -1.0] * 4)[:, None] * torch.ones(8, 4),
    "perfect": torch.eye(4).repeat_interleave(2, 0),
    "zero": torch.cat([torch.zeros(3, 4), torch.eye(4), torch.ones(1, 4)]),
    "huge": torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * 1e30,
    "tiny": torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * 1e-10,
}


@pytest.mark.parametrize("x", HARD.values(), ids=HARD)
@pytest.mark.parametrize("scale", [1.0, 64.0, 1e4])
@pytest.mark.parametrize("reweight", [True, False])
def test_never_nan(x, scale, reweight):
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    value, grad = run(x, labels, scale=scale, reweight=reweight)
    assert torch.isfinite(value)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("spread", [0.5, 0.4, 0.3])
def test_a_tiny_value_keeps_its_digits_in_float32(spread):
    """As gap - log(1 - p), a value of 2e-6 would be off by 0.3 %, and one of 1e-8 entirely."""
    x, labels = make_batch([2] * 30, dim=64, spread=spread)
    x = x.float()
    value, _ = run(x, labels, scale=32.0)
    wanted, _ = run(x.double(), labels, scale=32.0)
    assert 1e-8 < wanted < 1e-5
    assert float(value) == pytest.approx(float(wanted), rel=3e-5)


def test_the_gap_beyond_87_keeps_its_value_and_gradient():
    """-log p beyond 87, where log(ratio + tiny) is capped and dead: here 127 and 1."""
    x, labels = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [1.0, 0.2]]), torch.tensor([0, 0, 1])
    value, grad = run(x, labels, reweight=False)
    assert value > 60
    assert grad.abs().max() > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_work_in_float32(dtype):
    x, labels = make_batch([10] * 6, dtype=torch.float32)
    half = x.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, grad = run(half, labels)
    wanted_value, wanted = run(half.float(), labels)
    assert value.dtype == torch.float32
    assert value == wanted_value
    assert torch.equal(grad, wanted.to(dtype))


def test_labels_are_compared_as_integers():
    x, labels = make_batch([3] * 4)
    wanted, _ = run(x, labels)
    for other in (labels + 2**24, -labels - 5, labels * 10**12):
        value, _ = run(x, other)
        assert value == wanted


def test_batch_order_and_rotation_do_not_matter():
    x, labels = make_batch([3] * 4)
    wanted, grad = run(x, labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    value, moved = run(x[order], labels[order])
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(moved, grad[order])
    rotation = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64)).Q
    value, turned = run(x @ rotation, labels)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(turned @ rotation.T, grad)


@pytest.mark.parametrize("arguments", [{"scale": 0.0}, {"scale": -1.0}, {"block": 0}])
def test_impossible_arguments(arguments):
    with pytest.raises(ValueError, match="must be"):
        zoo.build("losses", "ice", **arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_as_on_the_cpu():
    x, labels = make_batch([10] * 6, dtype=torch.float32)
    _, wanted = run(x, labels)
    _, grad = run(x.cuda(), labels.cuda())
    torch.testing.assert_close(grad.cpu(), wanted, rtol=1e-4, atol=1e-6)
