"""The statistics: against scipy, statsmodels and brute force, and the rate of false positives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from zoo.comparing import significance
from zoo.comparing.compare import LEVEL
from zoo.comparing.significance import bootstrap, holm, mcnemar, sign_flip, t_test

TABLES = [(0, 0), (0, 1), (1, 0), (3, 3), (5, 2), (0, 12), (40, 61), (500, 430)]


@pytest.mark.parametrize(("b", "c"), TABLES)
def test_mcnemar_is_the_binomial_test(b, c):
    found = mcnemar(b, c)
    exact = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert found.p == pytest.approx(exact, rel=1e-12)
    assert found.p == mcnemar(c, b).p
    counts = np.arange(b + c + 1)
    chance = stats.binom.pmf(counts, b + c, 0.5)
    far = np.abs(2 * counts - b - c)
    mid = chance[far > abs(b - c)].sum() + chance[far == abs(b - c)].sum() / 2
    if b + c and b != c:
        assert found.mid_p == pytest.approx(mid, abs=1e-12)
    assert found.mid_p <= found.p


@pytest.mark.parametrize(("b", "c"), TABLES[1:])
def test_mcnemar_agrees_with_statsmodels(b, c):
    table = pytest.importorskip("statsmodels.stats.contingency_tables")
    theirs = table.mcnemar([[10, b], [c, 20]], exact=True).pvalue
    assert mcnemar(b, c).p == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("ahead", [[], [0, 0], [3], [1, -1], [2, 2, 2], [5, -1, 3, 0, -4, 2, 2]])
def test_sign_flip_counts_all_choices_of_signs(ahead):
    ahead = np.array(ahead, dtype=np.int64)
    signs = itertools.product((-1, 1), repeat=len(ahead))
    sums = np.array([abs(int((ahead * np.array(s)).sum())) for s in signs])
    assert sign_flip(ahead) == pytest.approx((sums >= abs(ahead.sum())).mean(), rel=1e-12)


def test_sign_flip_agrees_with_scipy():
    ahead = np.random.default_rng(0).integers(-5, 8, 12)
    theirs = stats.permutation_test((ahead,), np.sum, permutation_type="samples", n_resamples=2**12)
    assert sign_flip(ahead) == pytest.approx(theirs.pvalue, rel=1e-9)


@pytest.mark.parametrize(("b", "c"), TABLES)
def test_sign_flip_of_single_queries_is_mcnemar(b, c):
    ahead = np.array([1] * b + [-1] * c + [0] * 7, dtype=np.int64)
    assert sign_flip(ahead) == pytest.approx(mcnemar(b, c).p, rel=1e-9)


def test_the_interval_is_that_of_the_written_out_bootstrap():
    rng = np.random.default_rng(1)
    ahead = rng.integers(-1, 2, 200)
    found = bootstrap(ahead, np.ones_like(ahead))
    theirs = stats.bootstrap(
        (ahead,), np.mean, method="percentile", n_resamples=10_000, random_state=rng
    ).confidence_interval
    assert found == pytest.approx(tuple(theirs), abs=0.01)
    assert found == bootstrap(ahead, np.ones_like(ahead))


def test_classes_are_drawn_whole():
    ahead, sizes = np.array([5, -3, 0, 2, 8]), np.array([10, 4, 6, 9, 12])
    draws = np.random.default_rng(2).integers(0, 5, (20_000, 5))
    means = ahead[draws].sum(1) / sizes[draws].sum(1)
    assert bootstrap(ahead, sizes) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


def test_the_t_test_is_scipys():
    a, b = [0.61, 0.63, 0.60, 0.66], [0.60, 0.59, 0.58, 0.64]
    found = t_test(np.subtract(a, b).tolist())
    theirs = stats.ttest_rel(a, b)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval == pytest.approx(tuple(theirs.confidence_interval()))
    assert t_test([0.1]) is None
    assert t_test([0.1, 0.1]) is None


@pytest.mark.slow
@pytest.mark.parametrize("ps", [[], [0.04], [0.01, 0.04, 0.03, 0.5], [0.02, 0.02, 0.9], [1.0, 1.0]])
def test_holm_agrees_with_statsmodels(ps):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    theirs = multitest.multipletests(ps, method="holm")[1] if ps else []
    assert holm(ps) == pytest.approx(list(theirs))


def rate(ps):
    return float((np.asarray(ps) < LEVEL).mean())


def gains(rng, classes, each, spread=0.0):
    """Return which of two networks, equally good, answers a query alone: (classes, each).

    ``spread`` is how much better or worse, in logits, a network is at a class by chance.
    """
    difficulty = 2 + 2 * rng.standard_normal((classes, each))
    luck = spread * rng.standard_normal((2, classes, 1))
    a, b = rng.random((2, classes, each)) < 1 / (1 + np.exp(-difficulty - luck))
    return a.astype(np.int64) - b


@pytest.mark.slow
def test_five_percent_of_equal_pairs_are_called_different():
    """2,000 pairs on a test split such as that of CUB-200-2011, 100 classes of 59 queries."""
    rng = np.random.default_rng(0)
    pairs = [gains(rng, 100, 59) for _ in range(2_000)]
    found = [mcnemar(int((x > 0).sum()), int((x < 0).sum())) for x in pairs]
    assert 0.04 <= rate([one.p for one in found]) <= 0.06
    assert 0.04 <= rate([one.mid_p for one in found]) <= 0.06
    assert 0.04 <= rate([sign_flip(x.sum(1)) for x in pairs]) <= 0.06


@pytest.mark.slow
def test_where_queries_of_a_class_are_alike_classes_are_right_and_queries_are_not():
    rng = np.random.default_rng(0)
    pairs = [gains(rng, 42, 30, spread=0.8) for _ in range(2_000)]
    assert 0.04 <= rate([sign_flip(x.sum(1)) for x in pairs]) <= 0.06
    assert rate([mcnemar(int((x > 0).sum()), int((x < 0).sum())).p for x in pairs]) > 0.2


@pytest.mark.slow
def test_the_interval_misses_what_is_true_in_five_percent(monkeypatch):
    monkeypatch.setattr(significance, "DRAWS", 1_000)
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(2_000):
        by_class = gains(rng, 42, 20, spread=0.5).sum(1)
        low, high = bootstrap(by_class, np.full_like(by_class, 20))
        missed += not low <= 0 <= high
    assert 0.04 <= missed / 2_000 <= 0.07  # of few classes it is somewhat too narrow
