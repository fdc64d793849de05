"""Throughput and environment of a run in words; facts that a result lacks are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.report.charts import is_number


def facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts on how a result was made, as names and values."""
    return list(_facts(result))


def _facts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    data, seconds = result["dataset"], _map(result.get("seconds"))
    yield "Data set", data.get("folder") or data["name"]
    for what in ("classes", "images"):
        if is_number(data.get(what)):
            yield f"Test {what}", f"{data[what]:,}"
    yield "Fingerprint", data.get("fingerprint") or ""
    yield "Loss", result["loss"] or "none"
    yield "Backbone", result["backbone"]
    yield "Embedding size", str(result["embedding_size"])
    for key in ("iterations", "iterate", "iteration", "precision", "unmatched"):
        value = result.get(key)
        if value is not None:
            names = {"unmatched": "Queries without a match", "iterate": "Checkpoint"}
            yield names.get(key, key.capitalize()), f"{value:,}" if is_number(value) else str(value)
    if is_number(result.get("images_per_second")):
        yield "Training throughput", f"{result['images_per_second']:,.1f} images/s"
    for what in ("training", "evaluation"):
        if is_number(seconds.get(what)):
            yield f"{what.capitalize()} took", _duration(seconds[what])
    for key, value in _map(result.get("hardware")).items():
        yield "CPU" if key == "cpu" else str(key).capitalize(), str(value)
    for key, value in _map(result.get("versions")).items():
        yield str(key), str(value)
    git = _map(result.get("git"))
    if git:
        clean = "" if git.get("clean") else ", with uncommitted changes"
        yield "Commit", f"{str(git.get('commit'))[:12]}{clean}"
    yield "Finished", str(result.get("finished") or "")


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
