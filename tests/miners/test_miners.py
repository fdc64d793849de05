"""Every miner against loops, what it returns in odd batches, and where PML's differ."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from zoo import UserError, registry
from zoo.miners.uniform_histogram import bin_of

TRIPLETS = {
    "angular": {},
    "batch_easy_hard": {},
    "batch_hard": {},
    "distance_weighted": {"nonzero_loss_cutoff": 1.9},
    "hard_triplet": {},
    "moderate_positive": {},
    "semihard": {},
}
PAIRS = {"hdc": {}, "multi_similarity": {}, "pair_margin": {}, "uniform_histogram": {}}
MINERS = TRIPLETS | PAIRS
BATCHES = {"5x4": [4] * 5, "10x2": [2] * 10, "unbalanced": [2, 5, 1, 3, 7]}


def make(sizes, seed=0, dim=6, spread=1.0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = torch.randn(len(sizes), dim, generator=random)[y]
    x = x + spread * torch.randn(len(y), dim, generator=random)
    order = torch.randperm(len(y), generator=random)
    return 3 * x[order].to(dtype), y[order]


def distances(x, g, normalise=True):
    x, g = x.double(), g.double()
    if normalise:
        x, g = F.normalize(x), F.normalize(g)
    return (x[:, None] - g).norm(dim=2).tolist()


class Case:
    """A batch with or without a gallery, as plain lists: distances, positives, negatives."""

    def __init__(self, sizes, with_gallery=False, normalise=True):
        self.x, self.y = make(sizes)
        if with_gallery:
            n = len(self.y) // 3
            self.call = (self.x[:n], self.y[:n], self.x[n:], self.y[n:])
        else:
            self.call = (self.x, self.y)
        queries, y, gallery, g_y = (*self.call, *self.call)[:4]
        self.d = distances(queries, gallery, normalise)
        every = range(len(g_y))
        self.positives = {
            a: [p for p in every if y[a] == g_y[p] and (with_gallery or a != p)]
            for a in range(len(y))
        }
        self.negatives = {a: [n for n in every if y[a] != g_y[n]] for a in range(len(y))}

    def triplets(self):
        for a, positives in self.positives.items():
            yield from ((a, p, n) for p in positives for n in self.negatives[a])

    def pairs(self, kind):
        return [(a, b) for a, others in kind.items() for b in others]


def as_set(*indices):
    rows = list(zip(*(i.tolist() for i in indices), strict=True))
    assert len(rows) == len(set(rows))
    return set(rows)


cases = pytest.mark.parametrize(
    "case",
    [(sizes, gallery) for sizes in BATCHES.values() for gallery in (False, True)],
    ids=[name + gallery for name in BATCHES for gallery in ("", "-gallery")],
)


@cases
@pytest.mark.parametrize("margin", [0.2, 1.0])
def test_semihard_and_hard_triplets_equal_the_loops(case, margin):
    c = Case(*case)
    gaps = {(a, p, n): c.d[a][n] ** 2 - c.d[a][p] ** 2 for a, p, n in c.triplets()}
    mined = zoo.build("miners", "semihard", margin=margin)(*c.call)
    wanted = {t for t, gap in gaps.items() if 0 < gap <= margin}
    assert as_set(*mined) == wanted
    assert 0 < len(wanted) < len(gaps)
    mined = zoo.build("miners", "hard_triplet", margin=margin)(*c.call)
    assert as_set(*mined) == {t for t, gap in gaps.items() if gap <= margin}


@cases
@pytest.mark.parametrize("angle", [20.0, 35.0])
def test_angular_equals_the_loops(case, angle):
    c = Case(*case)
    x, g = (F.normalize(z.double()) for z in (c.call[0], (*c.call, *c.call)[2]))
    wanted = set()
    for a, p, n in c.triplets():
        centre = (x[a] + g[p]) / 2
        if math.atan2(c.d[a][p], 2 * float((g[n] - centre).norm())) > math.radians(angle):
            wanted.add((a, p, n))
    assert as_set(*zoo.build("miners", "angular", angle=angle)(*c.call)) == wanted
    assert wanted


@cases
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_multi_similarity_equals_the_loops(case, epsilon):
    c = Case(*case)
    s = [[1 - d**2 / 2 for d in row] for row in c.d]
    positive, negative = set(), set()
    for a in c.positives:
        if c.positives[a] and c.negatives[a]:
            least = min(s[a][p] for p in c.positives[a])
            most = max(s[a][n] for n in c.negatives[a])
            positive |= {(a, p) for p in c.positives[a] if s[a][p] < most + epsilon}
            negative |= {(a, n) for n in c.negatives[a] if s[a][n] > least - epsilon}
    mined = zoo.build("miners", "multi_similarity", epsilon=epsilon)(*c.call)
    assert as_set(*mined[:2]) == positive
    assert as_set(*mined[2:]) == negative
    pml = pml_miners.MultiSimilarityMiner(epsilon)(*c.call)
    assert as_set(*pml[:2]) == positive
    assert as_set(*pml[2:]) == negative


@cases
@pytest.mark.parametrize("normalise", [True, False])
def test_batch_hard_equals_the_loops(case, normalise):
    c = Case(*case, normalise=normalise)
    wanted = {
        (
            a,
            max(c.positives[a], key=c.d[a].__getitem__),
            min(c.negatives[a], key=c.d[a].__getitem__),
        )
        for a in c.positives
        if c.positives[a] and c.negatives[a]
    }
    mined = zoo.build("miners", "batch_hard", normalise=normalise)(*c.call)
    assert as_set(*mined) == wanted
    assert wanted


@cases
@pytest.mark.parametrize("negatives", ["semihard", "hard"])
def test_batch_easy_hard_equals_the_loops(case, negatives):
    c, wanted = Case(*case), set()
    for a, row in enumerate(c.d):
        if c.positives[a]:
            p = min(c.positives[a], key=row.__getitem__)
            beyond = [n for n in c.negatives[a] if negatives == "hard" or row[n] > row[p]]
            if beyond:
                wanted.add((a, p, min(beyond, key=row.__getitem__)))
    mined = zoo.build("miners", "batch_easy_hard", negatives=negatives)(*c.call)
    assert as_set(*mined) == wanted
    assert wanted


@cases
def test_moderate_positive_equals_the_loops(case):
    """Some anchors have a positive nearer than every negative, others take their nearest."""
    c, wanted, kinds = Case(*case), set(), set()
    for a, row in enumerate(c.d):
        if c.positives[a] and c.negatives[a]:
            n = min(c.negatives[a], key=row.__getitem__)
            moderate = [p for p in c.positives[a] if row[p] <= row[n]]
            kinds.add(bool(moderate))
            if moderate:
                wanted.add((a, max(moderate, key=row.__getitem__), n))
            else:
                wanted.add((a, min(c.positives[a], key=row.__getitem__), n))
    assert as_set(*zoo.build("miners", "moderate_positive")(*c.call)) == wanted
    assert kinds == {True, False}


@cases
def test_pair_margin_equals_the_loops(case):
    c = Case(*case)
    mined = zoo.build("miners", "pair_margin", pos_margin=0.7, neg_margin=1.2)(*c.call)
    assert as_set(*mined[:2]) == {(a, p) for a, p in c.pairs(c.positives) if c.d[a][p] > 0.7}
    assert as_set(*mined[2:]) == {(a, n) for a, n in c.pairs(c.negatives) if c.d[a][n] < 1.2}


@cases
@pytest.mark.parametrize("fraction", [0.2, 0.5, 1.0])
def test_hdc_equals_the_loops(case, fraction):
    c = Case(*case)
    mined = zoo.build("miners", "hdc", fraction=fraction)(*c.call)
    for kind, (a, b), sign in ((c.positives, mined[:2], -1), (c.negatives, mined[2:], 1)):
        hardness = sorted(sign * c.d[i][j] for i, j in c.pairs(kind))
        got = sorted(sign * c.d[i][j] for i, j in as_set(a, b))
        keep = math.floor(fraction * len(hardness))
        assert got == pytest.approx(hardness[:keep], abs=1e-6)  # either of a tie may be kept


def test_hdc_rounds_down_as_in_the_authors_code_and_pmls_up():
    """Theirs is a conversion to int; a fraction of a whole number is not rounded at all."""
    x, y = make([2, 3])
    assert [len(part) for part in zoo.build("miners", "hdc", fraction=0.2)(x, y)] == [1, 1, 2, 2]
    theirs = pml_miners.HDCMiner(0.2)(x, y)
    assert [len(part) for part in theirs] == [2, 2, 3, 3]
    for fraction, kept in ((0.1, 0), (0.5, 4), (0.999, 7), (1.0, 8)):
        assert len(zoo.build("miners", "hdc", fraction=fraction)(x, y)[0]) == kept
    x, y = make([10] * 10)
    assert len(zoo.build("miners", "hdc", fraction=0.29)(x, y)[0]) == 261  # of 900


@cases
def test_distance_weighted_takes_every_positive_pair_once(case):
    c = Case(*case)
    torch.manual_seed(0)
    a, p, n = zoo.build("miners", "distance_weighted", nonzero_loss_cutoff=1.3)(*c.call)
    near = {i: [j for j in c.negatives[i] if c.d[i][j] < 1.3] for i in c.negatives}
    assert as_set(a, p) == {(i, j) for i, j in c.pairs(c.positives) if near[i]}
    assert all(j in near[i] for i, j in zip(a.tolist(), n.tolist(), strict=True))


def test_distance_weighted_draws_by_the_inverse_density():
    """One anchor, one positive, five negatives; 20,000 draws of each."""
    random = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(7, 5, generator=random) + 0.7)
    y = torch.tensor([0, 0, 1, 1, 1, 1, 1])
    d = torch.tensor(distances(x[:1], x))[0, 2:].clamp_min(0.8)
    assert float(d.min()) == pytest.approx(0.8)
    assert d.max() < 1.4
    weights = 1 / (d**3 * (1 - d**2 / 4))
    torch.manual_seed(0)
    miner = zoo.build("miners", "distance_weighted", cutoff=0.8)
    counts = torch.zeros(7)
    anchors, labels = x[:1].repeat(2000, 1), y[:1].repeat(2000)
    for _ in range(10):
        _, _, n = miner(anchors, labels, x[1:], y[1:])
        counts += n.add(1).bincount(minlength=7)
    assert counts.sum() == 20_000
    torch.testing.assert_close(counts[2:] / 20_000, weights / weights.sum(), atol=0.02, rtol=0)


def test_distance_weighted_keeps_all_anchors_in_many_dimensions():
    """One near pair of other classes; in PML the other anchors' weights are then 0 in float32."""
    x, y = make([4] * 8, dim=512, spread=2.0)
    other = int((y != y[0]).nonzero()[0])
    x[other] = x[0] + 0.01 * torch.randn(512, generator=torch.Generator().manual_seed(0))
    d = torch.tensor(distances(x, x))
    may = ((y[:, None] != y) & (d < 1.4)).any(1)
    torch.manual_seed(0)
    a, _, _ = zoo.build("miners", "distance_weighted")(x, y)
    assert set(a.tolist()) == set(may.nonzero().flatten().tolist())
    theirs, _, _ = pml_miners.DistanceWeightedMiner(0.5, 1.4)(x, y)
    assert len(set(theirs.tolist())) < len(set(a.tolist())) / 2


@cases
def test_uniform_histogram_draws_alike_from_each_filled_bin(case):
    c = Case(*case)
    torch.manual_seed(0)
    sizes = {"num_bins": 7, "pos_per_bin": 3, "neg_per_bin": 4}
    mined = zoo.build("miners", "uniform_histogram", **sizes)(*c.call)
    for kind, (a, b), count in ((c.positives, mined[:2], 3), (c.negatives, mined[2:], 4)):
        everything = {(i, j): c.d[i][j] for i, j in c.pairs(kind)}
        low, high = min(everything.values()), max(everything.values())

        def place(d):
            return min(6, int(7 * (d - low) / max(high - low, 1e-12)))  # noqa: B023

        drawn = [place(everything[pair]) for pair in zip(a.tolist(), b.tolist(), strict=True)]
        filled = {place(d) for d in everything.values()}
        if len(everything) > 1:
            assert sorted(drawn) == sorted(count * list(filled))
    assert bin_of(torch.tensor([2.0, 2.0]), 5).tolist() == [4, 4]
    assert bin_of(torch.tensor([0.0, 0.5, 0.99, 1.0]), 2).tolist() == [0, 1, 1, 1]


ODD = {
    "no_positives": [1] * 6,
    "one_class": [6],
    "one_image": [1],
    "a_pair_and_a_single": [2, 1],
}


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("sizes", ODD.values(), ids=ODD)
def test_odd_batches_give_nothing_and_losses_take_that(name, sizes):
    x, y = make(sizes)
    mined = zoo.build("miners", name, **MINERS[name])(x, y)
    assert len(mined) == (3 if name in TRIPLETS else 4)
    assert all(i.dtype == torch.int64 and i.ndim == 1 for i in mined)
    if name in TRIPLETS and sizes != [2, 1]:
        assert not any(map(len, mined))
    for loss in (pml_losses.TripletMarginLoss(), zoo.build("losses", "ice")):
        value = loss(x.requires_grad_(), y, mined)
        assert torch.isfinite(value)


def test_near_a_collapse_float32_mines_what_float64_mines():
    """By 2 - 2 cosine in float32, many of the hardest pairs would be others."""
    x, y = make([4] * 10, dim=16)
    x = F.normalize(torch.ones(16), dim=0) + 2e-5 * x
    hdc = zoo.build("miners", "hdc")
    low, high = (as_set(*hdc(z, y)[:2]) for z in (x, x.double()))
    assert len(high) == 60
    assert len(low ^ high) <= 6


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("x", [torch.ones(8, 4), torch.zeros(8, 4), torch.eye(4).repeat(2, 1)])
def test_equal_embeddings_do_no_harm(name, x):
    mined = zoo.build("miners", name, **MINERS[name])(x, torch.arange(8) % 4)
    assert all(((i >= 0) & (i < 8)).all() for i in mined)


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_mined_in_float32(name, dtype):
    x, y = make([4] * 5)
    half = x.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(0)
        mined = zoo.build("miners", name, **MINERS[name])(half.requires_grad_(), y)
    torch.manual_seed(0)
    wanted = zoo.build("miners", name, **MINERS[name])(half.detach().float(), y)
    assert all(map(torch.equal, mined, wanted))
    assert len(mined[0])
    assert not any(i.requires_grad for i in mined)


@pytest.mark.parametrize("name", MINERS)
def test_labels_of_any_value_and_the_batch_as_its_own_gallery(name):
    x, y = make([4] * 5)
    results = []
    for arguments in ((x, y), (x, 2**24 + y), (x, -1 - y), (x, y, x, y)):
        torch.manual_seed(0)
        results.append(zoo.build("miners", name, **MINERS[name])(*arguments))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("name", sorted(set(MINERS) - {"batch_hard"}))
def test_lengths_do_not_matter(name):
    """PML's AngularMiner measures the embeddings as they are, though it says otherwise."""
    x, y = make([4] * 5)
    longer = x * (0.5 + torch.rand(20, 1, generator=torch.Generator().manual_seed(3)))
    mined = []
    for z in (x, longer, x * 1e30):
        torch.manual_seed(0)
        mined.append(zoo.build("miners", name, **MINERS[name])(z, y))
    assert [len(i) for i in mined[0]] == [len(i) for i in mined[1]] == [len(i) for i in mined[2]]
    if name == "angular":
        one, other = (pml_miners.AngularMiner(45)(z, y) for z in (x, longer))
        assert as_set(*one) != as_set(*other)
        assert as_set(*pml_miners.AngularMiner(45)(F.normalize(x), y)) == as_set(*mined[0])


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("name", MINERS)
def test_no_mask_of_all_triplets_is_made(name):
    """96 images of 48 classes: N³ is 885k, positive pairs x images, what triplets need, 9k.

    PML makes a mask of N x N x N for semi-hard, hard and angular triplets.
    """
    x, y = make([2] * 48)
    with Largest() as largest:
        zoo.build("miners", name, **MINERS[name])(x, y)
    assert largest.elements <= 2 * 96 * 96  # two indices for each pair
    if name in ("semihard", "hard_triplet", "angular"):
        pml = pml_miners.AngularMiner() if name == "angular" else pml_miners.TripletMarginMiner()
        with Largest() as largest:
            pml(x, y)
        assert largest.elements >= 96**3


def test_blocks_change_nothing(monkeypatch):
    from zoo.miners import _shared

    x, y = make([4] * 5)
    for name in ("semihard", "hard_triplet", "angular"):
        wanted = zoo.build("miners", name)(x, y)
        for elements in (1, 100, 1000):
            monkeypatch.setattr(_shared, "_BLOCK_ELEMENTS", elements)
            assert all(map(torch.equal, zoo.build("miners", name)(x, y), wanted))
        monkeypatch.undo()


@pytest.mark.parametrize("name", MINERS)
def test_what_a_miner_says_of_itself(name):
    found = registry.describe("miners", name)
    assert found.summary.endswith(".")
    assert found.paper
    assert found.broken is None
    assert all(not p.required for p in found.parameters)
    assert name in zoo.names("miners")


WRONG = [
    ("angular", {"angle": 90.0}),
    ("batch_easy_hard", {"negatives": "easy"}),
    ("batch_hard", {"normalise": "yes"}),
    ("distance_weighted", {"cutoff": 1.5}),
    ("distance_weighted", {"nonzero_loss_cutoff": 2.1}),
    ("hard_triplet", {"margin": -0.1}),
    ("hdc", {"fraction": 0.0}),
    ("hdc", {"fraction": 1.1}),
    ("multi_similarity", {"epsilon": -0.1}),
    ("pair_margin", {"neg_margin": 3.0}),
    ("semihard", {"margin": 0.0}),
    ("semihard", {"margin": math.nan}),
    ("uniform_histogram", {"num_bins": 0}),
    ("uniform_histogram", {"pos_per_bin": 1.5}),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG)
def test_impossible_arguments(name, arguments):
    with pytest.raises(UserError, match=next(iter(arguments))):
        zoo.build("miners", name, **arguments)
