"""The classes of pytorch-metric-learning, found in its source without importing it."""

from __future__ import annotations

import ast
import functools

from zoo._files import MOST_TEXT, read_bytes
from zoo._source import find_spec

_FOLDERS = {"losses": "losses", "miners": "miners"}
_HELPERS = ("distances", "reducers", "regularizers")
_ABSTRACT = ("Base", "Generic", "Mixin")


@functools.cache
def targets(kind: str) -> dict[str, str]:
    """Return ``{ClassName: "module:ClassName"}`` of a kind; empty for kinds that PML has not."""
    return _exports(_FOLDERS[kind]) if kind in _FOLDERS else {}


@functools.cache
def helpers() -> dict[str, str]:
    """Return the targets of what PML losses take: distances, reducers, regularizers."""
    return {name: target for folder in _HELPERS for name, target in _exports(folder).items()}


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
