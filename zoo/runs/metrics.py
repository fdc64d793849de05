"""Reading the metrics that a run writes during training, a line of JSON each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from zoo.config.schema import MOST_ITERATIONS
from zoo.errors import UserError
from zoo.support.files import read_text


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the metrics, without those that are damaged or incomplete."""
    try:
        text = read_text(path, errors="replace") if path.is_file() else ""
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return [record for line in text.splitlines() if (record := _record(line)) is not None]


def is_count(value: object) -> bool:
    """Return whether a value is a whole number of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _record(line: str) -> dict[str, Any] | None:
    """Return a line of the metrics; None if it is not one, or its numbers cannot be drawn."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not is_count(record.get("iteration")):
        return None
    return record if record["iteration"] <= MOST_ITERATIONS and _is_finite(record) else None


def _is_finite(record: dict[str, Any]) -> bool:
    try:
        return all(math.isfinite(x) for x in record.values() if isinstance(x, int | float))
    except OverflowError:  # a whole number that is too large
        return False
