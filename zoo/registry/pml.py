"""The classes of pytorch-metric-learning (PML), found in its source without importing it."""

from __future__ import annotations

import ast
import functools
import importlib

from zoo.registry.source import find_spec
from zoo.support.files import MOST_TEXT, read_bytes

PARTS = ("distances", "reducers", "regularizers")
"""The other kinds of component in its losses and miners."""

PREFIX = "pml."
_FOLDERS = ("losses", "miners", *PARTS)
_ABSTRACT = ("Base", "Generic", "Mixin")


@functools.cache
def targets(kind: str) -> dict[str, str]:
    """Return ``{ClassName: "module:ClassName"}`` of a kind; empty for kinds that PML does not have.

    Classes that miss a feature needed here are replaced by ours.
    """
    found = _exports(kind) if kind in _FOLDERS else {}
    ours = getattr(importlib.import_module(f"zoo.{kind}"), "PML", {}) if kind == "losses" else {}
    return found | {name: target for name, target in ours.items() if name in found}


def part(kind: str, name: str) -> str | None:
    """Return the target of a distance, reducer or regularizer, with or without ``pml.``."""
    return targets(kind).get(name.removeprefix(PREFIX))


def _exports(folder: str) -> dict[str, str]:
    package = f"pytorch_metric_learning.{folder}"
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse(read_bytes(spec.origin, MOST_TEXT))
    return {
        alias.name: f"{package}.{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not any(word in alias.name for word in _ABSTRACT)
    }
