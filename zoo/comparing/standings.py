"""Find the rows of a table that are not significantly worse than its best one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

from zoo.comparing import significance
from zoo.comparing.compare import LEVEL, Tested, at_k, check_same_data, classes_of, paired, read
from zoo.errors import UserError
from zoo.runs.folder import RunFolder
from zoo.support.checked import Between, checked
from zoo.support.text import counted, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_K: TypeAlias = Annotated[int, Between(1, 2**31 - 2)]

SEEDS = 3
"""With this many pairs of runs or more, rows are compared over seeds: as losses, not networks."""


class Standing(NamedTuple):
    """How a row compares with the best.

    Attributes:
        place: "best"; "not worse" if the difference may be chance; "worse" if it is significant;
            "unknown" if the row cannot be compared.
        p: two-sided, corrected by Holm's method for all rows; None if the row was not tested.
        reason: the test that was used, or why the row cannot be compared.
    """

    place: Literal["best", "not worse", "worse", "unknown"]
    p: float | None
    reason: str


@checked
def standings(rows: Sequence[Sequence[RunFolder]], k: _K) -> list[Standing]:
    """Return how each row compares with the one with the highest mean Recall@K.

    Runs are paired with the best row's by seed. With ``SEEDS`` pairs or more, the t test over seeds
    decides; else the permutation test over classes, or McNemar's over queries if classes are not
    known. The p-values are corrected by Holm's method.

    Args:
        rows: for each row its finished runs, which differ only in their seed.
        k: K.
    """
    tested, found = _read(rows, k)
    if not tested:
        return [found[i] for i in range(len(rows))]
    best = max(tested, key=lambda i: _mean(tested[i], k))
    classes = classes_of(tested[best])
    found[best] = Standing("best", None, "the highest mean")
    compared: dict[int, tuple[float, str]] = {}
    for i, row in tested.items():
        if i != best:
            try:
                compared[i] = _p(tested[best], row, k, classes)
            except UserError as error:
                found[i] = Standing("unknown", None, str(error))
    corrected = significance.holm([p for p, _ in compared.values()])
    for (i, (_, how)), p in zip(compared.items(), corrected, strict=True):
        found[i] = Standing("worse" if p < LEVEL else "not worse", p, how)
    return [found[i] for i in range(len(rows))]


def _read(
    rows: Sequence[Sequence[RunFolder]], k: int
) -> tuple[dict[int, list[Tested]], dict[int, Standing]]:
    """Return the rows that have Recall@K and ranks, and the standing of the others."""
    tested: dict[int, list[Tested]] = {}
    found: dict[int, Standing] = {}
    for i, row in enumerate(rows):
        try:
            runs = read(row)
            if not all(str(k) in run.result["recall"] for run in runs):
                raise UserError(f"Recall@{k} was not measured")
            tested[i] = runs
        except UserError as error:
            found[i] = Standing("unknown", None, printable(str(error)))
    return tested, found


def _mean(row: Sequence[Tested], k: int) -> float:
    return statistics.fmean(run.result["recall"][str(k)] for run in row)


def _p(
    best: Sequence[Tested], row: Sequence[Tested], k: int, classes: NDArray[np.int64] | str
) -> tuple[float, str]:
    """Return the p-value of a row against the best, and the test in words."""
    pairs, _ = paired(best, row)
    check_same_data([run for pair in pairs for run in pair])
    at = at_k(k, pairs, None if isinstance(classes, str) else classes)
    if at.seeds is not None and len(pairs) >= SEEDS:
        return at.seeds.p, f"t test over {len(pairs)} seeds"
    of = counted(len(pairs), "run")
    if at.classes is not None:
        units = counted(at.classes.units, "class", "classes")
        return at.classes.p, f"permutation test over {units}, {of}"
    return (
        at.queries.p,
        f"McNemar's test over {counted(at.queries.units, 'query', 'queries')}, {of}",
    )
