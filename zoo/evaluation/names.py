"""The names of the measures that a config can request in addition to Recall@K."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from zoo.errors import UserError, did_you_mean

Measure = Literal["map_at_r", "r_precision", "nmi", "ami"]
MEASURES: dict[str, str] = {
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "nmi": "NMI",
    "ami": "AMI",
}
"""The measures other than Recall@K, and their names in tables."""
CLUSTERING: tuple[Measure, ...] = ("nmi", "ami")
"""The measures of a clustering, which is by cosines."""


def check_measures(names: Iterable[str]) -> list[str]:
    """Return names of measures in the order of ``MEASURES``, each once; raise for unknown ones."""
    names = list(names)
    for name in names:
        if name not in MEASURES:
            near = did_you_mean(name, MEASURES) or f"; there are {', '.join(MEASURES)}"
            raise UserError(f"there is no measure {name!r}{near}")
    return [name for name in MEASURES if name in names]
