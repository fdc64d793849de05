"""OSM-CAA against loops, its two halves and its limits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from zoo import UserError

SIZES = {"num_classes": 4, "embedding_size": 16}


@pytest.fixture
def built(build_loss):
    def build(**arguments):
        torch.manual_seed(0)
        loss = build_loss("osm_caa", **SIZES, **arguments).double()
        torch.nn.init.normal_(loss.class_vectors, std=2.0)  # so that the attention differs
        return loss

    return build


def attend(a, sigma):
    return a if sigma is None else math.exp(-((1 - a) ** 2) / (2 * sigma**2))


def loops(loss, x, labels):
    """The value, in plain numbers."""
    f, y = F.normalize(x), labels.tolist()
    logits = f @ loss.class_vectors.detach().T
    attention = [float(row.softmax(0)[c]) for row, c in zip(logits, y, strict=True)]
    value = loss.ce_weight * sum(-math.log(a) for a in attention) / len(y)
    sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for i in range(len(y)):
        for j in range(len(y)):
            if i != j:
                d, same = float((f[i] - f[j]).norm()), y[i] == y[j]
                near = max(0.0, loss.alpha - d)
                weight = math.exp(-(d**2) / loss.sigma**2) if same else near
                weight *= attend(min(attention[i], attention[j]), loss.attention_sigma)
                sums[same][0] += weight
                sums[same][1] += weight * (d if same else near) ** 2
    for same, share in ((True, 1 - loss.balance), (False, loss.balance)):
        if sums[same][0]:
            value += share * sums[same][1] / sums[same][0] / 2
    return value


@pytest.mark.parametrize("sizes", [[4] * 4, [2, 5, 1, 3], [6], [1, 1, 1, 1]])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"balance": 0.2, "sigma": 0.3, "ce_weight": 0.0},
        {"sigma": 0.8 * 2**0.5, "attention_sigma": 0.68},
    ],
)
def test_value_and_gradient_equal_the_loops(built, make_batch, derive, sizes, settings):
    x, labels = make_batch(sizes)
    loss = built(**settings)
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert float(value) == pytest.approx(loops(loss, x, labels), abs=1e-12)
    torch.testing.assert_close(gradient, loss.reference_gradient(x, labels), atol=1e-10, rtol=0)


def gaussian(x, sigma, mean):
    """The layer of the authors' code: a normal density."""
    return math.exp(-0.5 * ((x - mean) / sigma) ** 2) / math.sqrt(2 * math.pi * sigma**2)


def authors_pairs(f, labels, probabilities, alpha=1.2):
    """The gradient wrt the normalised embeddings of the authors' weighted pair layer."""
    attention = [gaussian(p, 0.68, 1.0) for p in probabilities]
    y = labels.tolist()
    weights, sums = {}, {True: 1e-12, False: 1e-12}
    for a in range(len(y)):
        for b in range(a + 1, len(y)):
            d, same = float((f[a] - f[b]).norm()), y[a] == y[b]
            score = gaussian(d, 0.8, 0.0) if same else max(0.0, alpha - d)
            weights[a, b] = score * min(attention[a], attention[b])
            sums[same] += weights[a, b]
    gradient = torch.zeros_like(f)
    for (a, b), weight in weights.items():
        d, same = (f[a] - f[b]).norm(), y[a] == y[b]
        force = (f[a] - f[b]) * (1 if same else -max(0.0, alpha - float(d)) / d)
        gradient[a] += 0.5 * weight / sums[same] * force
        gradient[b] -= 0.5 * weight / sums[same] * force
    return gradient


def test_with_the_authors_constants_it_is_their_layer(built, make_batch):
    """On the unit sphere; their layer's gradient is that of balance 0.5, without cross entropy."""
    x, labels = make_batch([4] * 4)
    loss = built(sigma=0.8 * 2**0.5, attention_sigma=0.68, ce_weight=0.0)
    f = F.normalize(x)
    probabilities = (f @ loss.class_vectors.detach().T).softmax(1)[range(16), labels].tolist()
    theirs = authors_pairs(f, labels, probabilities)
    f.requires_grad_()
    (mine,) = torch.autograd.grad(loss(f, labels), f)
    tangent = theirs - (theirs * f).sum(1, keepdim=True) * f  # ours passes the normalisation
    torch.testing.assert_close(mine, tangent.detach(), atol=1e-10, rtol=0)
    assert theirs.abs().max() > 1e-3


def test_the_class_vectors_learn_by_cross_entropy_alone(built, make_batch):
    x, labels = make_batch([4] * 4)
    loss = built()
    (got,) = torch.autograd.grad(loss(x, labels), loss.class_vectors)
    vectors = loss.class_vectors.detach().requires_grad_()
    F.cross_entropy(F.normalize(x) @ vectors.T, labels).backward()
    torch.testing.assert_close(got, vectors.grad)


def test_gradcheck_where_the_weights_do_not_matter(built, make_batch):
    """Of a single positive and a single negative pair the weights are 1/2, whatever they are."""
    x, labels = make_batch([2], dim=16)
    loss = built(balance=0.0)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.clone().requires_grad_())
    labels, loss = torch.tensor([0, 1]), built(alpha=2.0, balance=1.0)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), x.clone().requires_grad_())


def test_a_wide_sigma_and_even_attention_are_the_plain_contrastive_loss(built, make_batch):
    x, labels = make_batch([4] * 4)
    loss = built(sigma=1e6, balance=0.0, ce_weight=0.0)
    torch.nn.init.zeros_(loss.class_vectors)
    distance = torch.cdist(F.normalize(x), F.normalize(x))
    positive = (labels[:, None] == labels) & ~torch.eye(16, dtype=torch.bool)
    torch.testing.assert_close(loss(x, labels), distance[positive].square().mean() / 2)


def test_a_mislabelled_image_weighs_little(built, derive):
    """Its attention is the least of both, so that its pairs hardly count."""
    x = torch.eye(16, dtype=torch.float64)[:4] + 0.1
    labels = torch.tensor([0, 0, 0, 0])
    loss = built(balance=0.0, ce_weight=0.0)
    with torch.no_grad():
        loss.class_vectors.zero_()
        loss.class_vectors[0, :3] = 40.0  # the fourth image is not what the class looks like
        loss.class_vectors[1, 3] = 40.0
    _, gradient = derive(lambda z: loss(z, labels), x)
    assert gradient[3].norm() < 1e-3 * gradient[0].norm()


def test_vanishing_attention_is_no_division_of_zero_by_zero(built, derive):
    """exp(-2000) is 0 in float32; the weights are those of the logarithms."""
    x = torch.eye(16)[:4] + 0.1
    labels = torch.tensor([0, 0, 1, 1])
    loss = built(ce_weight=0.0).float()
    with torch.no_grad():
        loss.class_vectors.zero_()
        loss.class_vectors[3] = 1000.0
    value, gradient = derive(lambda z: loss(z, labels), x)
    assert value > 0.1
    assert gradient.abs().max() > 1e-3


def test_a_gallery(built, make_batch):
    x, labels = make_batch([4] * 4)
    loss = built(ce_weight=0.0)
    halves = loss(x[:8], labels[:8], ref_emb=x[8:], ref_labels=labels[8:])
    mirrored = loss(x[8:], labels[8:], ref_emb=x[:8], ref_labels=labels[:8])
    torch.testing.assert_close(halves, mirrored)


def test_labels_without_a_class_vector_are_refused(built):
    for labels in ([0, 4], [-1, 0]):
        with pytest.raises(UserError, match="weights for 4 classes"):
            built()(torch.randn(2, 16), torch.tensor(labels))


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": 0.0}, {"alpha": 2.5}, {"sigma": 0.0}, {"balance": 1.5}, {"ce_weight": -1.0}],
)
def test_impossible_arguments(build_loss, arguments):
    with pytest.raises(UserError, match="not"):
        build_loss("osm_caa", **arguments)
