"""Miners of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.miners":
    raise ImportError(f"import zoo.miners, not {__name__}")

BUILTIN: dict[str, dict[str, str]] = {
    "miners": {},
    "samplers": {
        "hard_class": "zoo.miners.hard_class:HardClassSampler",
    },
}
