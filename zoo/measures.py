"""MAP@R, R-precision, NMI and AMI: the public entrance to :mod:`zoo.evaluation.measures`."""

from __future__ import annotations

from zoo.evaluation.measures import Measured, measure

__all__ = ["Measured", "measure"]
