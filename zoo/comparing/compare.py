"""Compare two runs, or two experiments over their seeds, query by query.

Torch is imported only for runs that did not keep the classes of their queries. The tests are in
:mod:`zoo.comparing.significance`; docs/compare.md explains what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from zoo.comparing import significance
from zoo.comparing.significance import Interval
from zoo.errors import UserError
from zoo.runs.folder import RunFolder
from zoo.support.checked import checked
from zoo.support.text import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray


LEVEL = 0.05
"""A difference is significant if its p-value is below this."""

_ROUNDING = 1e-9  # of a fraction that went through JSON

Better: TypeAlias = Literal["A", "B"] | None


@dataclass(frozen=True)
class TestedDifference:
    """A difference at one K, tested over units of one kind: queries, classes or seeds.

    Attributes:
        units: how many there are.
        p: two-sided, for this K alone.
        corrected: the same, corrected by Holm's method for all K of the comparison.
        interval: the 95 % interval of A - B, as fractions; None if there is none.
        better: the better side, if ``corrected`` is below ``LEVEL``.
    """

    units: int
    p: float
    interval: Interval | None
    corrected: float = 1.0
    better: Better = None


@dataclass(frozen=True)
class AtK:
    """Two sides at one K; recall in fractions, means over the pairs of runs.

    Attributes:
        k: K.
        a: Recall@K of A.
        b: Recall@K of B.
        only_a: how often only A answers a query, over all pairs of runs.
        only_b: how often only B does.
        queries: over queries, by McNemar's exact test, generalised if there are several pairs.
        mid_p: McNemar's mid-p; None if there are several pairs.
        classes: over classes of queries, by the permutation test; None if they are not known.
        seeds: over seeds, by the t test; None if there are fewer than two.
        seeds_exact: p of the permutation test over seeds; None if there are fewer than two.
    """

    k: int
    a: float
    b: float
    only_a: int
    only_b: int
    queries: TestedDifference
    mid_p: float | None
    classes: TestedDifference | None
    seeds: TestedDifference | None
    seeds_exact: float | None

    @property
    def networks(self) -> TestedDifference:
        """The test that decides between the networks: over classes if known, else over queries."""
        return self.classes or self.queries


@dataclass(frozen=True)
class Comparison:
    """A comparison of two sides.

    Attributes:
        a: the runs of A by name, in pairs with those of B.
        b: the runs of B.
        dataset: the data set that they were tested on.
        queries: how many there are.
        at: the comparison at each K.
        without_classes: why the classes of the queries are not known; empty if they are.
        left_out: runs without a partner of the same seed on the other side.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    dataset: str
    queries: int
    at: tuple[AtK, ...]
    without_classes: str = ""
    left_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return asdict(self)


class Tested(NamedTuple):
    """A finished run with its result and ranks."""

    folder: RunFolder
    result: dict[str, Any]
    ranks: NDArray[np.int32]

    @property
    def name(self) -> str:
        """The name of its folder, safe to print."""
        return printable(self.folder.path.resolve().name)


Pairs: TypeAlias = "Sequence[tuple[Tested, Tested]]"


@checked
def read(folders: Sequence[RunFolder]) -> list[Tested]:
    """Return finished runs with their results and ranks.

    Raises:
        UserError: if one has no result or no ranks.
    """
    runs = [Tested(folder, folder.result(), folder.ranks()) for folder in folders]
    for run in runs:
        _check_belongs(run)
    return runs


def _check_belongs(run: Tested) -> None:
    """Refuse ranks that do not give the Recall@K of the result."""
    for k, recall in run.result["recall"].items():
        if not len(run.ranks) or abs(float((run.ranks <= int(k)).mean()) - recall) > _ROUNDING:
            raise UserError(
                f"{run.name}: its ranks.npy does not give the Recall@{k} of its result.json, so "
                "one of them is from another run; run it again with --restart"
            )


@checked
def compare(
    a: Sequence[Tested], b: Sequence[Tested], ks: Sequence[int] | None = None
) -> Comparison:
    """Compare two sides, each a run or the seeds of one experiment.

    Args:
        a: one run, or several that differ only in their seed.
        b: the same; if there are several, runs of the same seed are paired.
        ks: values of K; by default all that both sides have.

    Raises:
        UserError: if the runs cannot be compared.
    """
    pairs, left_out = paired(a, b)
    check_same_data([run for pair in pairs for run in pair])
    ks = _choose_ks(ks, pairs)
    labels = classes_of([run for pair in pairs for run in pair])
    known = None if isinstance(labels, str) else labels
    dataset = pairs[0][0].result["dataset"]
    return Comparison(
        tuple(one.name for one, _ in pairs),
        tuple(other.name for _, other in pairs),
        printable(dataset.get("folder") or dataset["name"]),
        len(pairs[0][0].ranks),
        tuple(_correct([at_k(k, pairs, known) for k in ks])),
        labels if isinstance(labels, str) else "",
        tuple(left_out),
    )


def check_same_data(runs: Sequence[Tested]) -> None:
    """Refuse runs that were not tested on the same queries.

    Raises:
        UserError: naming two of them and what differs.
    """
    first = runs[0]
    for run in runs[1:]:
        one, other = (r.result["dataset"].get("fingerprint", "") for r in (first, run))
        names = [printable(r.result["dataset"]["name"]) for r in (first, run)]
        if one != other:
            what = f"other images: {names[0]} (fingerprint {printable(one) or 'unknown'}) and "
            what += f"{names[1]} ({printable(other) or 'unknown'})"
        elif len(first.ranks) != len(run.ranks):
            what = f"{len(first.ranks):,} and {len(run.ranks):,} queries"
        else:
            continue
        raise UserError(
            f"{first.name} and {run.name} were tested on {what}; only the same queries can be "
            "compared"
        )


def classes_of(runs: Sequence[Tested]) -> NDArray[np.int64] | str:
    """Return the class of each query, numbered from 0; or, in words, why it is not known.

    Runs store the classes with their ranks. If none of the runs did, the data set is read.
    """
    count = len(runs[0].ranks)
    for run in runs:
        try:
            labels = run.folder.labels()
        except UserError:  # another run or the data set may have them
            continue
        if labels is not None and len(labels) == count:
            return _numbered(labels)
    return _classes_in_data(runs[0])


def _classes_in_data(run: Tested) -> NDArray[np.int64] | str:
    from zoo.data import splits
    from zoo.runs.plugins import check_there

    try:
        settings = run.folder.config()
        check_there(run.folder, "datasets", settings.dataset.name)
        dataset = splits.build_dataset(settings, "test")
    except UserError as error:
        return printable(str(error).splitlines()[0])
    if dataset.fingerprint() != run.result["dataset"].get("fingerprint"):
        return "the images have changed since the test"
    return _numbered(np.asarray(dataset.labels))


def _numbered(labels: NDArray[Any]) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return numbers


def paired(a: Sequence[Tested], b: Sequence[Tested]) -> tuple[Pairs, list[str]]:
    """Return the pairs of runs, and the names of those that have no partner.

    Raises:
        UserError: if they have no seed in common.
    """
    if len(a) == len(b) == 1:
        return [(a[0], b[0])], []
    of_a, of_b = ({run.result["seed"]: run for run in side} for side in (a, b))
    common = sorted(of_a.keys() & of_b.keys())
    if not common:
        seeds = [", ".join(map(str, sorted(side))) for side in (of_a, of_b)]
        raise UserError(
            f"A has the seeds {seeds[0]}, B has {seeds[1]}: none in common; run one side with the "
            "seeds of the other, or compare one run of each"
        )
    alone = [run.name for side in (of_a, of_b) for seed, run in side.items() if seed not in common]
    return [(of_a[seed], of_b[seed]) for seed in common], alone


def _choose_ks(ks: Sequence[int] | None, pairs: Pairs) -> list[int]:
    """Return the K to compare at; ranks beyond the largest K of a run may not be exact."""
    measured = [{int(k) for k in run.result["recall"]} for pair in pairs for run in pair]
    if ks is None:
        common = sorted(set.intersection(*measured))
        if not common:
            raise UserError("the runs have no K in common; choose with --ks")
        return common
    largest = min(max(of_run) for of_run in measured)
    for k in ks:
        if not 1 <= k <= largest:
            raise UserError(f"K must be from 1 to {largest}, the largest of all runs, not {k}")
    return sorted(set(ks))


def at_k(k: int, pairs: Pairs, labels: NDArray[np.int64] | None) -> AtK:
    """Compare at one K; the p-values are not yet corrected for the other K."""
    hits = [[run.ranks <= k for run in pair] for pair in pairs]
    gains = np.stack([one.astype(np.int64) - other for one, other in hits])
    ahead = gains.sum(0)
    only_a, only_b = int((gains > 0).sum()), int((gains < 0).sum())
    single = significance.mcnemar(only_a, only_b) if len(pairs) == 1 else None
    size = np.full_like(ahead, len(pairs))
    by_seed = gains.sum(1)
    t = significance.t_test((by_seed / len(ahead)).tolist())
    return AtK(
        k,
        float(np.mean([one.mean() for one, _ in hits])),
        float(np.mean([other.mean() for _, other in hits])),
        only_a,
        only_b,
        TestedDifference(
            len(ahead),
            single.p if single else significance.sign_flip(ahead),
            significance.bootstrap(ahead, size),
        ),
        single.mid_p if single else None,
        None if labels is None else _of_classes(ahead, size, labels),
        TestedDifference(len(pairs), t.p, t.interval) if t else None,
        significance.sign_flip(by_seed) if len(pairs) > 1 else None,
    )


def _of_classes(
    ahead: NDArray[np.int64], size: NDArray[np.int64], labels: NDArray[np.int64]
) -> TestedDifference:
    by_class, sizes = (np.bincount(labels, x).astype(np.int64) for x in (ahead, size))
    return TestedDifference(
        len(sizes), significance.sign_flip(by_class), significance.bootstrap(by_class, sizes)
    )


def _correct(found: Sequence[AtK]) -> list[AtK]:
    """Correct the p-values for the number of K, and set which side is better."""
    queries = _corrected([at.queries for at in found], found)
    classes = _corrected([at.classes for at in found], found)
    seeds = _corrected([at.seeds for at in found], found)
    return [
        replace(at, queries=of_queries or at.queries, classes=of_classes, seeds=of_seeds)
        for at, of_queries, of_classes, of_seeds in zip(found, queries, classes, seeds, strict=True)
    ]


def _corrected(
    column: Sequence[TestedDifference | None], found: Sequence[AtK]
) -> list[TestedDifference | None]:
    ps = significance.holm([1.0 if one is None else one.p for one in column])
    better: list[Better] = [
        None if p >= LEVEL else "A" if at.a > at.b else "B" for p, at in zip(ps, found, strict=True)
    ]
    return [
        one and replace(one, corrected=p, better=side)
        for one, p, side in zip(column, ps, better, strict=True)
    ]
