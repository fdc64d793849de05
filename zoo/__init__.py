"""metric-zoo: compare, reproduce, write, check and use losses of deep metric learning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zoo.errors import UserError
from zoo.registry import build, describe, names, register

if TYPE_CHECKING:
    from zoo import checks, evaluate, export, index, leaderboard, measures, runner
    from zoo.trained import load

__version__ = "0.1.0"
__all__ = [
    "UserError",
    "build",
    "checks",
    "describe",
    "evaluate",
    "export",
    "index",
    "leaderboard",
    "load",
    "measures",
    "names",
    "register",
    "runner",
]

_LAZY = frozenset({"checks", "evaluate", "export", "index", "leaderboard", "measures", "runner"})


def __getattr__(name: str) -> Any:
    """Import the modules that need torch when they are first used."""
    if name == "load":
        return importlib.import_module("zoo.trained").load
    if name in _LAZY:
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, also of the modules that are not imported yet."""
    return sorted({*globals(), *__all__})
