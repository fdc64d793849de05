"""Recall by a setting: experiments that differ in one number only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from zoo.comparing.spread import Score
from zoo.report.charts import is_number
from zoo.support.values import as_setting
from zoo.tables.boards import Row

Leaves: TypeAlias = dict[str, Any]

_CLASSES, _PER_CLASS = "sampler.classes", "sampler.per_class"
_TITLES = {
    "loss.scale": "scale",
    "model.embedding_size": "embedding size",
    _CLASSES: "batch size",
}


class Point(NamedTuple):
    """An experiment of a sweep: its place on the axis, in numbers and in words."""

    x: float
    text: str
    recall: Score
    paper: float | None


class Series(NamedTuple):
    """Experiments that differ only in the swept setting, in its order."""

    name: str
    points: list[Point]


class Sweep(NamedTuple):
    """Recall at the first K by a setting.

    Attributes:
        setting: its path, as on the command line.
        title: its name in words.
        k: K.
        in_words: whether points are labelled by text, such as a batch of "6 x 10".
        series: one for each combination of the other settings.
    """

    setting: str
    title: str
    k: int
    in_words: bool
    series: list[Series]


class _Experiment(NamedTuple):
    row: Row
    leaves: Leaves


def find(rows: Iterable[Row]) -> list[Sweep]:
    """Return the sweeps among the rows of a board; a row without recorded settings is in none."""
    known = [
        _Experiment(row, dict(_leaves(settings)))
        for row in rows
        if (settings := row.results[0].get("settings"))
    ]
    paths = sorted(
        {path for one in known for path, value in one.leaves.items() if is_number(value)}
    )
    found = [_content(known), *(_along(path, known) for path in paths if path != _PER_CLASS)]
    if _PER_CLASS in paths and not found[0].series:
        found.append(_along(_PER_CLASS, known))
    return [sweep for sweep in found if sweep.series]


def _along(path: str, known: Sequence[_Experiment]) -> Sweep:
    """Return the sweep of experiments that differ only in one number."""
    grouped: dict[str, list[tuple[float, _Experiment]]] = {}
    for one in known:
        if is_number(one.leaves.get(path)):
            x = float(one.leaves[path])
            if path == _CLASSES and is_number(one.leaves.get(_PER_CLASS)):
                x *= one.leaves[_PER_CLASS]
            grouped.setdefault(_rest(one.leaves, {path}), []).append((x, one))
    points = {rest: [(x, f"{x:g}", one) for x, one in own] for rest, own in grouped.items()}
    return _sweep(path, _TITLES.get(path, path), points, {path})


def _content(known: Sequence[_Experiment]) -> Sweep:
    """Return the sweep of experiments that divide batches of one size differently into classes."""
    grouped: dict[str, list[tuple[float, str, _Experiment]]] = {}
    swept = {_CLASSES, _PER_CLASS}
    for one in known:
        classes: Any = one.leaves.get(_CLASSES)
        each: Any = one.leaves.get(_PER_CLASS)
        if is_number(classes) and is_number(each):
            rest = _rest(one.leaves, swept) + f" {classes * each}"
            grouped.setdefault(rest, []).append((float(classes), f"{classes} × {each}", one))
    title = "batch content, classes × images of each"
    return _sweep("sampler", title, grouped, swept, in_words=True)


def _sweep(
    setting: str,
    title: str,
    grouped: Mapping[str, Sequence[tuple[float, str, _Experiment]]],
    swept: set[str],
    in_words: bool = False,
) -> Sweep:
    groups = [own for own in grouped.values() if len({x for x, _, _ in own}) > 1]
    firsts = [own[0][2] for own in groups]
    k = min((min(one.row.recall) for one in firsts), default=1)
    series = []
    for own, name in zip(groups, _names(firsts, swept), strict=True):
        points = [
            Point(x, text, one.row.recall[k], one.row.paper.get(k))
            for x, text, one in sorted(own, key=lambda point: point[0])
            if k in one.row.recall
        ]
        series.append(Series(name, points))
    return Sweep(setting, title, k, in_words, [one for one in series if len(one.points) > 1])


def _names(experiments: Sequence[_Experiment], swept: set[str]) -> Iterator[str]:
    """Yield a name for each: its config, and the settings that differ from the others."""
    paths = dict.fromkeys(path for one in experiments for path in one.leaves if path not in swept)
    for one in experiments:
        differing = [
            f"{path}={as_setting(one.leaves[path])}"
            for path in paths
            if path in one.leaves
            and "." in path
            and any(path in o.leaves and o.leaves[path] != one.leaves[path] for o in experiments)
        ]
        yield " ".join([one.row.name, *differing[:4]])


def _rest(leaves: Leaves, swept: set[str]) -> str:
    return json.dumps([(k, v) for k, v in sorted(leaves.items()) if k not in swept])


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _leaves(value, inner)
        else:
            yield inner, value
