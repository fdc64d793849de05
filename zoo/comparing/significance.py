"""Is a difference in Recall@K more than chance? Paired tests and intervals, without torch.

All of them start from units that swap sides as a whole if there is no difference: queries, classes
of queries, or seeds. Of each unit it is known by how much the one side is ahead. What each of the
units can say, and what it cannot, is in docs/compare.md.
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
"""Of the bootstrap, so that the same runs give the same interval."""


class Interval(NamedTuple):
    """What an interval reaches from and to."""

    low: float
    high: float


class McNemar(NamedTuple):
    """The test of two networks on the same queries.

    Attributes:
        p: exact; never too small, but with few queries on which the two differ larger than need be.
        mid_p: counts what was observed half: near to 5 % where the exact test is below.
    """

    p: float
    mid_p: float


@checked
def mcnemar(only_a: _Queries, only_b: _Queries) -> McNemar:
    """Return the two-sided p-values of McNemar's test.

    Of the queries on which two networks differ, either is right as often as the other if there is
    no difference: ``only_a`` is binomial with n = ``only_a + only_b`` and probability 1/2. With
    m = min(only_a, only_b), the exact p is min(1, 2 P(X <= m)), and mid-p is that less P(X = m).

    Source: McNemar 1947, Note on the sampling error of the difference between correlated
    proportions, Psychometrika 12; mid-p: Fagerland, Lydersen and Laake 2013, The McNemar test for
    binary matched-pairs data, BMC Medical Research Methodology 13.
    """
    from scipy import stats

    total = only_a + only_b
    if not total:
        return McNemar(1.0, 1.0)
    exact = float(stats.binomtest(only_a, total).pvalue)
    if only_a == only_b:  # both tails hold what was observed
        return McNemar(exact, float(1 - stats.binom.pmf(only_a, total, 0.5) / 2))
    return McNemar(exact, exact - float(stats.binom.pmf(only_a, total, 0.5)))


@checked
def sign_flip(ahead: Integers) -> float:
    """Return the exact two-sided p-value of the permutation test of paired units.

    If there is no difference, each unit i might as well have -x_i as x_i, its side ahead by x_i.
    p is the share of all 2^n choices of signs of which |sum of ±x_i| is at least what it is. With
    units of one query it is McNemar's exact test; with classes, one that holds where the queries
    of a class are alike.

    Args:
        ahead: (n,) x_i, whole numbers, so that the sum has few values: no draw is needed.

    Raises:
        UserError: they are not.
    """
    _check_row("ahead", ahead)
    steps = np.abs(ahead[ahead != 0]).astype(np.int64)
    total, observed = int(steps.sum()), abs(int(ahead.sum()))
    # The sum of ±x is 2 (sum of those with a plus) - total; one step after the other joins in.
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
    """Return the percentile interval of sum(ahead) / sum(sizes), the units drawn anew.

    Units are drawn with replacement, as many as there are, ``DRAWS`` times. A unit is a query, of
    size 1, or a class with all of its queries, which keeps together what is alike.

    Args:
        ahead: (n,) by how much one side is ahead in a unit.
        sizes: (n,) what a unit could be ahead by.
        share: of the samples that the interval holds.

    Raises:
        UserError: there are no units, or they have no sizes above 0.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13; of clusters:
    Field and Welsh 2007, Bootstrapping clustered data, JRSS B 69.
    """
    _check_row("ahead", ahead)
    _check_row("sizes", sizes)
    if len(ahead) != len(sizes) or not len(ahead):
        raise UserError(f"{len(ahead)} units in ahead do not go with {len(sizes)} sizes")
    if (sizes < 1).any():
        raise UserError("sizes must be 1 or more: what a unit could be ahead by")
    kinds, counts = np.unique(np.stack([ahead, sizes]), axis=1, return_counts=True)
    # How often each kind of unit is drawn is all that counts: no sample is written out.
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
    """Return the paired t test of whether differences are 0 on average; None if it has no meaning.

    It takes the differences to be drawn from a normal distribution; of a few that cannot be seen.
    There must be two of them that are not equal.
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

    The k-th smallest of m is multiplied by m - k + 1, and none is less than one before it: the
    chance that any of the comparisons without a difference falls below 5 % is then at most 5 %.

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
        raise UserError(f"{name} must be of shape (units,); it is of shape {values.shape}")
