"""Is a difference in Recall@K more than chance? Paired tests and intervals, without torch.

The tests are over units: queries, classes of queries, or seeds. If there is no difference, the two
sides of each unit can be swapped. For each unit, the input is by how much one side is ahead. What
each kind of unit can and cannot show is explained in docs/compare.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.support.checked import Between, Share, checked

_Queries = Annotated[int, Between(0, 2**31 - 1)]
Integers: TypeAlias = NDArray[np.integer[Any]]

DRAWS = 10_000
"""Samples of a bootstrap."""

SEED = 0
"""Seed of the bootstrap, so that the same runs give the same interval."""


class Interval(NamedTuple):
    """The two ends of an interval."""

    low: float
    high: float


class McNemar(NamedTuple):
    """The test of two networks on the same queries.

    Attributes:
        p: exact; never too small, but larger than necessary if the two differ on few queries.
        mid_p: counts the observed outcome half; its error rate is near 5 %, not below.
    """

    p: float
    mid_p: float


@checked
def mcnemar(only_a: _Queries, only_b: _Queries) -> McNemar:
    """Return the two-sided p-values of McNemar's test.

    If there is no difference, each network is right on half of the queries on which they differ:
    ``only_a`` is binomial with n = ``only_a + only_b`` and probability 1/2. With m = min(only_a,
    only_b), the exact p is min(1, 2 P(X <= m)), and mid-p is that minus P(X = m).

    Source: McNemar 1947, Note on the sampling error of the difference between correlated
    proportions, Psychometrika 12; mid-p: Fagerland, Lydersen and Laake 2013, The McNemar test for
    binary matched-pairs data, BMC Medical Research Methodology 13.
    """
    from scipy import stats

    total = only_a + only_b
    if not total:
        return McNemar(1.0, 1.0)
    exact = float(stats.binomtest(only_a, total).pvalue)
    if only_a == only_b:  # both tails contain the observed outcome
        return McNemar(exact, float(1 - stats.binom.pmf(only_a, total, 0.5) / 2))
    return McNemar(exact, exact - float(stats.binom.pmf(only_a, total, 0.5)))


@checked
def sign_flip(ahead: Integers) -> float:
    """Return the exact two-sided p-value of the permutation test of paired units.

    In unit i one side is ahead by x_i; without a difference, -x_i is as likely as x_i. p is the
    share of all 2^n choices of signs whose |sum of ±x_i| is at least the observed one. If each unit
    is one query, this is McNemar's exact test; if it is a class, the test stays valid when queries
    of a class are alike.

    Args:
        ahead: (n,) x_i, whole numbers, so that the sum has few values and needs no sampling.

    Raises:
        UserError: if they are not whole numbers.
    """
    _check_row("ahead", ahead)
    steps = np.abs(ahead[ahead != 0]).astype(np.int64)
    total, observed = int(steps.sum()), abs(int(ahead.sum()))
    # The sum of ±x is 2 (sum of those with a plus) - total; the steps are added one by one.
    share = np.zeros(total + 1)
    share[0], reached = 1.0, 0
    for step in np.sort(steps):
        joined = share[: reached + 1] / 2
        share[: reached + 1] = joined
        share[step : reached + step + 1] += joined
        reached += step
    sums = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(share[sums >= observed].sum()))


@checked
def bootstrap(ahead: Integers, sizes: Integers, share: Share = 0.95) -> Interval:
    """Return the bootstrap percentile interval of sum(ahead) / sum(sizes).

    All n units are resampled with replacement, ``DRAWS`` times. A unit is a query, of size 1, or a
    class with all of its queries, so that queries that are alike stay together.

    Args:
        ahead: (n,) by how much one side is ahead in each unit.
        sizes: (n,) by how much a side could be ahead at most.
        share: of the samples that are inside the interval.

    Raises:
        UserError: if there are no units, or a size is below 1.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13; of clusters:
    Field and Welsh 2007, Bootstrapping clustered data, JRSS B 69.
    """
    _check_row("ahead", ahead)
    _check_row("sizes", sizes)
    if len(ahead) != len(sizes) or not len(ahead):
        raise UserError(f"{len(ahead)} units in ahead do not match {len(sizes)} sizes")
    if (sizes < 1).any():
        raise UserError("sizes must be 1 or more: by how much a side could be ahead")
    kinds, counts = np.unique(np.stack([ahead, sizes]), axis=1, return_counts=True)
    # Only how often each kind of unit is drawn matters: no sample has to be stored.
    drawn = np.random.default_rng(SEED).multinomial(len(ahead), counts / len(ahead), DRAWS)
    means = (drawn @ kinds[0]) / (drawn @ kinds[1])
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return Interval(float(low), float(high))


class TTest(NamedTuple):
    """Student's test of paired differences."""

    p: float
    interval: Interval


@checked
def t_test(differences: Sequence[float], share: Share = 0.95) -> TTest | None:
    """Return the paired t test of whether differences are 0 on average.

    It assumes a normal distribution of the differences, which a few values cannot confirm. It needs
    two values that are not equal; else it is None.
    """
    from scipy import stats

    if len(differences) < 2 or np.ptp(differences) == 0:
        return None
    found: Any = stats.ttest_1samp(differences, 0.0)
    low, high = found.confidence_interval(share)
    return TTest(float(found.pvalue), Interval(float(low), float(high)))


@checked
def holm(ps: Sequence[Share]) -> list[float]:
    """Return p-values corrected for how many there are.

    The k-th smallest of m is multiplied by m - k + 1, and raised to the one before it if smaller.
    Then the chance that any comparison without a difference falls below 5 % is at most 5 %.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal
    of Statistics 6.
    """
    corrected, least = [0.0] * len(ps), 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = max(least, min(1.0, (len(ps) - place) * ps[i]))
        corrected[i] = least
    return corrected


def _check_row(name: str, values: Integers) -> None:
    if values.ndim != 1:
        raise UserError(f"{name} must be of shape (units,), not {values.shape}")
