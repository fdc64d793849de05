"""The neighbour, prototype and pair losses that PML lacks, on batches that break formulas."""

from __future__ import annotations

import pytest
import torch

LOSSES = (
    "binomial_deviance",
    "drpr",
    "log_ratio",
    "matching_net",
    "osm_caa",
    "prototypical",
    "scalable_nca",
    "tadam",
)
ANY_LABELS = [name for name in LOSSES if name != "osm_caa"]
# What remains to be learned with no positives, one class, or one image
LEARNS = {
    "no_positives": ("binomial_deviance", "drpr", "log_ratio", "osm_caa"),
    "one_class": ("binomial_deviance", "log_ratio", "osm_caa"),
    "one_image": ("osm_caa",),
}
GENERATOR = torch.Generator().manual_seed(0)
NOISE = torch.randn(8, 4, generator=GENERATOR)
HARD = {
    "collapsed": torch.ones(8, 4),
    "antipodal": torch.tensor([1.0, -1.0] * 4)[:, None] * torch.ones(8, 4),
    "antipodal_classes": torch.tensor([1.0, 1, -1, -1] * 2)[:, None] * torch.ones(8, 4),
    "perfect": torch.eye(4).repeat_interleave(2, 0),
    "duplicates": NOISE[[0, 1, 0, 1, 2, 2, 3, 0]],
    "zero_rows": torch.cat([torch.zeros(3, 4), torch.eye(4), torch.ones(1, 4)]),
    "zero": torch.zeros(8, 4),
    "norm_1e6": NOISE * 1e6,
    "norm_1e30": NOISE * 1e30,
    "norm_1e-10": NOISE * 1e-10,
}
LABELS = {
    "pairs": [0, 0, 1, 1, 2, 2, 3, 3],
    "unequal": [0, 0, 0, 0, 1, 2, 2, 2],
    "no_positives": [0, 1, 2, 3, 4, 5, 6, 7],
    "one_class": [1] * 8,
}


@pytest.fixture
def built(build_loss):
    def build(name):
        return build_loss(name, num_classes=8, embedding_size=4)

    return build


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_value_and_gradient_are_finite_in_three_steps(built, name, case, labels):
    loss = built(name)
    if case == "norm_1e30" and not loss.normalises:
        pytest.skip("it does not normalise, and 1e60 is no float32")
    for _ in range(3):
        x = HARD[case].clone().requires_grad_()
        loss.zero_grad()
        value = loss(x, torch.tensor(labels))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(x.grad).all()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in loss.parameters())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("case", LEARNS)
def test_nothing_to_learn_from_gives_zero_with_a_graph(built, name, case):
    n = 1 if case == "one_image" else 5
    x = NOISE[:n].clone().requires_grad_()
    value = built(name)(x, torch.arange(n) if case == "no_positives" else torch.ones(n).long())
    value.backward()
    if name in LEARNS[case]:
        assert value != 0
    else:
        assert value == 0
        assert not x.grad.any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_work_in_float32(built, derive, name, dtype):
    labels = torch.tensor(LABELS["unequal"])
    torch.manual_seed(0)
    half = NOISE.to(dtype)
    loss = built(name).eval()
    wanted_value, wanted = derive(lambda z: loss(z, labels), half.float())
    half.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(half, labels)
    (gradient,) = torch.autograd.grad(value, half)
    assert value.dtype == torch.float32
    assert value == wanted_value
    assert torch.equal(gradient, wanted.to(dtype))


@pytest.mark.parametrize("name", ANY_LABELS)
def test_any_integers_are_labels(built, name):
    labels = torch.tensor(LABELS["unequal"])
    wanted = built(name)(NOISE, labels)
    for other in (labels + 2**24, labels - 2**40, labels.int(), labels.to(torch.int8)):
        torch.testing.assert_close(built(name)(NOISE, other), wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_order_does_not_matter(built, derive, name):
    labels = torch.tensor(LABELS["unequal"])
    torch.manual_seed(0)
    loss = built(name).double().eval()
    value, gradient = derive(lambda z: loss(z, labels), NOISE.double())
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    moved = derive(lambda z: loss(z, labels[order]), NOISE[order].double())
    torch.testing.assert_close(moved, (value, gradient[order]))


@pytest.mark.parametrize("name", LOSSES)
def test_the_state_decides_the_value(built, name):
    labels = torch.tensor(LABELS["unequal"])
    one, other = built(name), built(name)
    for _ in range(3):
        one(NOISE, labels)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(NOISE + 1, labels), one(NOISE + 1, labels))
