"""The statistics: against scipy, statsmodels and brute force, and the rate of false positives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from zoo.significance import bootstrap, holm, mcnemar, sign_flip, t_test

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


@pytest.mark.parametrize("ps", [[], [0.04], [0.01, 0.04, 0.03, 0.5], [0.02, 0.02, 0.9], [1.0, 1.0]])
def test_holm_agrees_with_statsmodels(ps):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    theirs = multitest.multipletests(ps, method="holm")[1] if ps else []
    assert holm(ps) == pytest.approx(list(theirs))


def simulate(rng, pairs, queries, level, differ):
    """Return (only_a, only_b) of pairs of networks that are alike: a share of queries differs."""
    n = rng.binomial(queries, differ, pairs)
    b = rng.binomial(n, 0.5)
    return b, n - b


def rate(ps):
    return float(np.mean(np.asarray(ps) < 0.05))


@pytest.mark.parametrize(("queries", "differ"), [(5_924, 0.2), (60_502, 0.1)])
def test_five_percent_of_pairs_without_a_difference_differ(queries, differ):
    """CUB-200-2011 and SOP, 2,000 pairs: exact and mid-p are within 5 ± 1 %."""
    rng = np.random.default_rng(0)
    found = [mcnemar(int(b), int(c)) for b, c in zip(*simulate(rng, 2_000, queries, 0, differ))]
    assert 0.04 <= rate([f.p for f in found]) <= 0.06
    assert 0.04 <= rate([f.mid_p for f in found]) <= 0.06
