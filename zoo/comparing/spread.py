"""Recall@K over seeds: mean, standard deviation, 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zoo.support.checked import checked

Spread = Literal["std", "ci"]

_TAIL = 0.975  # both tails together are 5 %


@dataclass(frozen=True)
class Score:
    """A Recall@K in percent; ``values`` has one for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean, by Student's t; None for one seed."""
        if self.deviation is None:
            return None
        from scipy.special import stdtrit

        count = len(self.values)
        half = float(stdtrit(count - 1, _TAIL)) * self.deviation / math.sqrt(count)
        return float(f"{half:.10g}")  # older versions of SciPy differ in later digits

    def spread(self, kind: Spread) -> float | None:
        """Return the number after ±: the deviation or half the interval."""
        return self.deviation if kind == "std" else self.interval

    def show(self, kind: Spread = "std", digits: int = 2) -> str:
        """Return the score as tables show it, such as "87.98 ± 0.38"."""
        spread = self.spread(kind)
        return f"{self.mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

    def __str__(self) -> str:
        return self.show()


@checked
def average(recalls: Sequence[Mapping[str, float]]) -> dict[int, Score]:
    """Return the score by K; the input is, for each seed, fractions by K."""
    ks = sorted({int(k) for recall in recalls for k in recall})
    return {
        k: Score(tuple(100 * recall[str(k)] for recall in recalls if str(k) in recall)) for k in ks
    }
