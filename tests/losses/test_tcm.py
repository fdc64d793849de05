"""TCM against loops and PML's, added to losses of all sorts."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses as pml

import zoo
from zoo import UserError, registry
from zoo.checks.memory import PeakMemory

SIZES = {"balanced": [3] * 4, "unbalanced": [2, 5, 3, 1], "singles": [1, 1, 1], "one_class": [5]}


def loops(x, labels, m_plus, m_minus):
    f = x / x.norm(dim=1, keepdim=True)
    y, low, high = labels.tolist(), [], []
    for i in range(len(y)):
        for j in range(len(y)):
            s = f[i] @ f[j]
            if i != j and y[i] == y[j] and s <= m_plus:
                low.append(m_plus - s)
            if y[i] != y[j] and s >= m_minus:
                high.append(s - m_minus)
    return sum(sum(part) / len(part) for part in (low, high) if part)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("m_plus", "m_minus"), [(0.9, 0.5), (0.5, 0.1)])
def test_equals_the_loss_and_the_loops(
    build_loss, make_batch, derive, same, sizes, m_plus, m_minus
):
    x, labels = make_batch(sizes, dim=4, spread=0.7)
    margins = {"positive_margin": m_plus, "negative_margin": m_minus}
    loss = build_loss("tcm", loss={"name": "ice", "scale": 8.0, "reweight": False}, **margins)
    ice = build_loss("ice", scale=8.0, reweight=False)
    for weight in (0.0, 1.0, 2.5):
        loss.weight = weight
        found = derive(lambda z: loss(z, labels), x)

        def wanted(z, weight=weight):
            return ice(z, labels) + weight * loops(z, labels, m_plus, m_minus)

        same(found, derive(wanted, x), 1e-12)
        assert found[1].abs().max() > 1e-3 or not weight or len(x) < 6


@pytest.mark.skipif(
    not hasattr(pml, "ThresholdConsistentMarginLoss"), reason="older versions of PML lack it"
)
def test_equals_pmls_regulariser_in_less_memory(build_loss, make_batch, derive, same):
    x, labels = make_batch([4] * 8, dim=64, spread=0.7)
    loss, contrastive = build_loss("tcm", loss="contrastive"), build_loss("contrastive")
    theirs = pml.ThresholdConsistentMarginLoss()
    same(
        derive(lambda z: loss(z, labels), x),
        derive(lambda z: contrastive(z, labels) + theirs(z, labels), x),
        1e-10,
    )
    twice = [torch.tensor(part) for part in ([0, 0, 1], [2, 2, 3], [4, 4, 4, 5], [6, 6, 6, 7])]
    torch.testing.assert_close(
        loss.margins(x, labels, tuple(twice)), theirs(x, labels, tuple(twice))
    )
    peaks = []
    for one in (loss.margins, theirs):
        memory = PeakMemory()
        with memory:
            derive(lambda z, one=one: one(z, labels), x)
        peaks.append(memory.peak)
    assert 5 * peaks[0] < peaks[1]


@pytest.mark.parametrize("name", ["smooth_ap", "proxy_anchor", "pml.TripletMarginLoss", "siglip"])
def test_any_loss_may_be_inside_and_keeps_its_parameters(build_loss, make_batch, name):
    x, labels = make_batch([3] * 2, dim=4)
    loss = build_loss("tcm", loss=name)
    inner = zoo.build("losses", name) if name.startswith("pml.") else build_loss(name)
    names = [f"loss.{one}" for one, _ in inner.named_parameters()]
    assert [one for one, _ in loss.named_parameters()] == names
    inner.load_state_dict(loss.loss.state_dict())
    regulariser = loops(x, labels, 0.9, 0.5)
    expected = float((inner(x.float(), labels) + regulariser).detach())
    assert float(loss(x.float(), labels).detach()) == pytest.approx(expected, abs=1e-5)


def test_parts_are_those_of_the_loss_if_it_has_any(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=4)
    loss = build_loss("tcm", loss="multi_similarity", weight=0.5)
    parts = [loss.part(x, labels, slice(*cut)) for cut in ((0, 5), (5, 12))]
    totals, counts = (sum(part) for part in zip(*parts, strict=True))
    torch.testing.assert_close((totals / counts).sum(), loss(x, labels))
    assert not hasattr(build_loss("tcm", loss="proxy_anchor"), "part")


def test_mined_pairs_and_a_gallery_reach_both(build_loss, make_batch):
    x, labels = make_batch([3] * 4, dim=4)
    loss, contrastive = build_loss("tcm", loss="contrastive"), build_loss("contrastive")
    few = (torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), torch.tensor([2]))
    for given in ((x, labels, few), (x[:4], labels[:4], None, x[4:], labels[4:])):
        expected = contrastive(*given) + loss.margins(*given)
        torch.testing.assert_close(loss(*given), expected)
    with pytest.raises(UserError, match="ref_emb has no meaning"):
        build_loss("tcm", loss="fastap")(x, labels, ref_emb=x + 0, ref_labels=labels)


@pytest.mark.parametrize("x", [torch.ones(6, 4), torch.zeros(6, 4), torch.eye(6)[:, :4] * 1e30])
def test_never_nan(build_loss, derive, x):
    y = torch.tensor([0, 0, 1, 1, 0, 1])
    value, gradient = derive(lambda z: build_loss("tcm", loss="ice")(z, y), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_one_image_gives_zero_with_a_graph(build_loss, derive):
    loss = build_loss("tcm", loss="ice")
    value, gradient = derive(lambda z: loss(z, torch.tensor([3])), torch.ones(1, 4))
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize(
    "wrong", [{"weight": -1.0}, {"positive_margin": 1.5}, {"negative_margin": -2.0}], ids=str
)
def test_senseless_arguments_are_refused(build_loss, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}.* must be"):
        build_loss("tcm", loss="ice", **wrong)


def test_the_loss_is_told_which_images_it_sees():
    inner = {"name": "cross_batch_memory", "memory_size": 12}
    sizes = {"embedding_size": 4, "num_images": 30}
    loss = registry.assemble("losses", "tcm", {"loss": inner}, sizes)
    ids = torch.tensor([7, 3, 11, 5, 20, 29])
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    loss(x, ids % 2, image_ids=ids)
    assert set(loss.loss.memory_ids.tolist()) == {-1, *ids.tolist()}
