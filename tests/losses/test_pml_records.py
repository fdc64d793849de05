"""The losses that are PML's, against loops and PML's own; and hard batches for its whole family.

The family are those that pytorch-metric-learning has under another name, or nearly has.
"""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses as pml

from zoo import UserError, checks
from zoo.checks import Subject

THIN = {
    "heated_up": lambda: pml.NormalizedSoftmaxLoss(5, 8, temperature=1 / 16),
    "cosface": lambda: pml.CosFaceLoss(5, 8, margin=0.35, scale=64),
    "am_softmax": lambda: pml.CosFaceLoss(5, 8, margin=0.35, scale=30),
    "proxy_anchor": lambda: pml.ProxyAnchorLoss(5, 8, margin=0.1, alpha=32),
    "fastap": lambda: pml.FastAPLoss(num_bins=10),
}
OF_CLASSES = (*(name for name in THIN if name != "fastap"), "normface", "arcface", "sphereface")
OF_CLASSES = (*OF_CLASSES, "soft_triple", "center")
OF_PAIRS = ("nca", "multi_similarity", "fastap", "contrastive", "margin", "histogram", "angular")
OF_PAIRS = (*OF_PAIRS, "snr", "circle", "supcon", "ntxent")
ALL = (*OF_CLASSES, *OF_PAIRS)
ARGUMENTS = {"snr": {"zero_mean_weight": 0.0}}  # its last term is there without pairs


def softmax_loops(x, labels, weight, scale, margin):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        cosines = [(row / row.norm()) @ (w / w.norm()) for w in weight]
        e = [torch.exp(scale * (c - margin * (k == y))) for k, c in enumerate(cosines)]
        terms.append(-torch.log(e[y] / sum(e)))
    return sum(terms) / len(terms)


def proxy_anchor_loops(x, labels, proxies, margin=0.1, alpha=32):
    y, pulled, pushed = labels.tolist(), [], []
    for c, proxy in enumerate(proxies):
        s = [(row / row.norm()) @ (proxy / proxy.norm()) for row in x]
        near = [torch.exp(-alpha * (v - margin)) for v, k in zip(s, y, strict=True) if k == c]
        far = [torch.exp(alpha * (v + margin)) for v, k in zip(s, y, strict=True) if k != c]
        pulled += [torch.log(1 + sum(near))] if near else []
        pushed.append(torch.log(1 + sum(far)))
    return sum(pulled) / len(pulled) + sum(pushed) / len(pushed)


def fastap_loops(x, labels, bins=10):
    y, terms = labels.tolist(), []
    f = x / x.norm(dim=1, keepdim=True)
    for a in range(len(y)):
        positives = [k for k in range(len(y)) if k != a and y[k] == y[a]]
        others = [k for k in range(len(y)) if k != a]
        if not positives:
            continue

        def share(k, j, a=a):
            d = (f[a] - f[k]).square().sum()
            return (1 - (d - 4 * j / bins).abs() * bins / 4).clamp_min(0)

        precision = 0
        for j in range(bins + 1):
            h = sum(share(k, j) for k in positives)
            up_to = [
                sum(share(k, i) for k in of for i in range(j + 1)) for of in (positives, others)
            ]
            if h > 0:
                precision = precision + h * up_to[0] / up_to[1]
        terms.append(1 - precision / len(positives))
    return sum(terms) / len(terms)


LOOPS = {
    "heated_up": lambda x, y, w: softmax_loops(x, y, w.T, 16, 0),
    "cosface": lambda x, y, w: softmax_loops(x, y, w.T, 64, 0.35),
    "am_softmax": lambda x, y, w: softmax_loops(x, y, w.T, 30, 0.35),
    "proxy_anchor": lambda x, y, w: proxy_anchor_loops(x, y, w),
    "fastap": lambda x, y, _: fastap_loops(x, y),
}


@pytest.mark.parametrize("name", THIN)
def test_equals_the_loops_and_pmls(build_loss, make_batch, derive, same, name):
    x, labels = make_batch([3, 1, 4], dim=8)
    mine = build_loss(name, num_classes=5, embedding_size=8).double()
    theirs = THIN[name]().double()
    theirs.load_state_dict(mine.pml.state_dict())
    weight = next((p.detach() for p in mine.parameters()), None)
    found = derive(lambda z: mine(z, labels), x)
    same(found, derive(lambda z: LOOPS[name](z, labels, weight), x), 1e-10)
    same(found, derive(lambda z: theirs(z, labels), x), 1e-10)


def test_a_heated_up_stage_goes_on_with_the_weights_of_the_one_before(
    build_loss, make_batch, derive, same
):
    x, labels = make_batch([3, 1, 4], dim=8)
    sizes = {"num_classes": 5, "embedding_size": 8}
    first, second = (build_loss("heated_up", **sizes, scale=s).double() for s in (16.0, 4.0))
    second.load_state_dict(first.state_dict())
    found = derive(lambda z: second(z, labels), x)
    weight = first.pml.W.detach()
    same(found, derive(lambda z: softmax_loops(z, labels, weight.T, 4, 0), x), 1e-12)


OWN = [name for name in ALL if name not in THIN and name != "circle"]


@pytest.mark.parametrize("name", OWN)
def test_the_gradient_is_the_derivative(build_loss, make_batch, name):
    x, labels = make_batch([3, 1, 3], dim=4, length=0.5)
    loss = build_loss(name, num_classes=3).double()
    parameters = [p for p in loss.parameters() if p.requires_grad]
    assert torch.autograd.gradcheck(
        lambda z, *_: loss(z, labels), (x.requires_grad_(), *parameters)
    )


def test_circles_gradient_is_not(build_loss, make_batch):
    x, labels = make_batch([3, 1, 3], dim=4)
    loss = build_loss("circle")
    x.requires_grad_()
    assert not torch.autograd.gradcheck(lambda z: loss(z, labels), x, raise_exception=False)


Y = torch.tensor([0, 0, 1, 1, 0, 1])
AXES = torch.eye(4)
RANDOM = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
HARD = {
    "collapsed": (torch.ones(6, 4), Y),
    "all of one random row": (RANDOM[:1].expand(6, 4), Y),
    "antipodal": (torch.tensor([1.0, -1, 1, -1, 1, 1])[:, None] * RANDOM[:1], Y),
    "perfect": (AXES[Y], Y),
    "perfectly wrong": (AXES[torch.arange(6) % 2], Y),
    "duplicates": (RANDOM[[0, 0, 2, 2, 0, 2]], Y),
    "zero rows": (RANDOM * torch.tensor([0.0, 1, 0, 1, 1, 1])[:, None], Y),
    "all zero": (torch.zeros(6, 4), Y),
    "large": (RANDOM * 1e6, Y),
    "tiny": (RANDOM * 1e-10, Y),
    "one class": (RANDOM, Y * 0),
    "no positives": (RANDOM[:2], Y[1:3]),
    "one image": (RANDOM[:1], Y[:1]),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("x", "labels"), HARD.values(), ids=HARD)
def test_never_nan(build_loss, derive, name, x, labels):
    loss = build_loss(name)
    batches = [x, x.double(), x.bfloat16(), x.half()]
    if loss.normalises and x is HARD["large"][0]:
        batches = [x, x * 1e24, x.double()]
    for z in batches:
        if z.isfinite().all():
            value, gradient = derive(lambda z: loss(z, labels), z)
            assert value.isfinite()
            assert value.dtype == (torch.float64 if z.dtype == torch.float64 else torch.float32)
            assert gradient.isfinite().all()


@pytest.mark.parametrize("name", OF_CLASSES)
def test_embeddings_on_their_weights_and_opposite_them(build_loss, derive, name):
    loss = build_loss(name)
    own = next(p for p in loss.parameters() if p.numel() >= 8)
    own = own.T if own.shape == (4, 2) else own.flatten(0, -2)
    for x in (own, -own, own.flip(0)):
        value, gradient = derive(lambda z: loss(z, torch.arange(len(z)) % 2), x)
        assert value.isfinite()
        assert gradient.isfinite().all()


NEITHER = {"one image": (RANDOM[:1], Y[:1]), "one class": (RANDOM, Y * 0)}
NEITHER["no positives"] = (RANDOM[:2], Y[1:3])
LEFT = {"contrastive": 2, "multi_similarity": 2}  # it learns from positives or negatives alone


@pytest.mark.parametrize("name", OF_PAIRS)
@pytest.mark.parametrize(("x", "labels"), NEITHER.values(), ids=NEITHER)
def test_nothing_to_learn_from_gives_zero(build_loss, derive, name, x, labels):
    loss = build_loss(name, **ARGUMENTS.get(name, {}))
    value, gradient = derive(lambda z: loss(z, labels), x)
    if len(x) == 1 or name not in (*LEFT, "snr"):
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("name", OF_CLASSES)
def test_weights_keep_their_type_as_pmls_do_not(build_loss, name):
    loss = build_loss(name)
    loss(RANDOM.double(), Y).backward()
    for parameter in loss.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("name", OF_CLASSES[:3] + OF_CLASSES[4:7])
def test_one_class_alone_gives_zero(build_loss, derive, name):
    loss = build_loss(name, num_classes=1)
    value, gradient = derive(lambda z: loss(z, Y * 0), RANDOM)
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("label", [-1, 2, 2**40])
def test_labels_without_weights_are_refused(build_loss, name, label):
    with pytest.raises(UserError, match="this loss has weights for 2 classes"):
        build_loss(name)(torch.ones(2, 4), torch.tensor([0, label]))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("check", [checks.check_repeated_steps, checks.check_state_dict])
def test_it_goes_on_and_is_restored(name, check):
    check(Subject(name))


WRONG = {
    "am_softmax": {"scale": 0.0},
    "cosface": {"margin": -0.1},
    "arcface": {"scale": -1.0},
    "sphereface": {"softening": -1.0},
    "normface": {"scale": 0.0},
    "heated_up": {"scale": float("inf")},
    "proxy_anchor": {"alpha": 0.0},
    "soft_triple": {"gamma": 0.0},
    "center": {"weight": -0.1},
    "nca": {"scale": 0.0},
    "multi_similarity": {"beta": 0.0},
    "fastap": {"num_bins": 0},
    "contrastive": {"margin": 0.0},
    "margin": {"beta": 0.0},
    "histogram": {"n_bins": 0},
    "angular": {"alpha": 90.0},
    "snr": {"margin": 0.0},
    "circle": {"m": 1.0},
    "supcon": {"temperature": 0.0},
    "ntxent": {"temperature": -0.1},
}


@pytest.mark.parametrize("name", ALL)
def test_senseless_arguments_are_refused(build_loss, name):
    ((argument, _),) = WRONG[name].items()
    with pytest.raises(UserError, match=f"{argument}:? must be"):
        build_loss(name, **WRONG[name])
