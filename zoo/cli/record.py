"""The outcomes of the checks at the release; read without importing torch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from zoo.support.files import read_json

_FILE = "checks.json"


def path() -> Path:
    """Return the path of the record, in the folder of the losses."""
    return Path(importlib.import_module("zoo.losses").__path__[0]) / _FILE


def read() -> dict[str, dict[str, Any]]:
    """Return the counts of outcomes by loss; empty where there is no record."""
    try:
        losses: dict[str, dict[str, Any]] = read_json(path())["losses"]
    except (OSError, ValueError, KeyError):
        return {}
    return losses


def in_short(counts: dict[str, Any] | None) -> str:
    """Return counts of outcomes in a few characters: "30 pass", "27 pass, 1 cannot", "2 fail"."""
    if counts is None:
        return ""
    failed = counts.get("failed", 0) + counts.get("unexpected pass", 0)
    if failed:
        return f"{failed} fail"
    expected = counts.get("expected failure", 0)
    return f"{counts.get('passed', 0)} pass" + (f", {expected} cannot" if expected else "")
