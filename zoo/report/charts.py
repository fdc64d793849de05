"""Figures for plotly.js, as plain data; the page sets the colours, for a light or dark theme."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from zoo.support.text import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from zoo.report.sweeps import Series, Sweep

Figure: TypeAlias = dict[str, Any]
Metrics: TypeAlias = Sequence[Mapping[str, Any]]

# Lines differ in dash and marker too, not only in colour.
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
_OTHER_SEED = {"color": "rgba(128,128,128,0.55)", "width": 1}
_MOST_K = 100


def text(value: str) -> str:
    """Return a text escaped for plotly, where ``<b>`` is markup."""
    return html.escape(printable(value), quote=False)


def loss_curve(metrics: Metrics, others: Mapping[str, Metrics] | None = None) -> Figure | None:
    """Return the loss by iteration; None if it was never logged.

    Args:
        metrics: the lines of a run's metrics.jsonl.
        others: those of its other seeds, by name.
    """
    own = logged(metrics, "loss")
    if not own:
        return None
    traces = [
        _line(name, points, line=_OTHER_SEED, mode="lines")
        for name, found in (others or {}).items()
        if (points := logged(found, "loss"))
    ]
    traces.insert(0, _line("this run" if traces else "loss", own) | {"zorder": 1})
    return _figure(traces, "iteration", "loss", showlegend=len(traces) > 1)


def recall_curve(metrics: Metrics) -> Figure | None:
    """Return Recall@K by iteration; None if it was not measured during training."""
    found: dict[str, list[tuple[float, float]]] = {}
    for key, where in (("recall", ""), ("recall_of_validation", ", held-out classes")):
        for record in metrics:
            values = record.get(key)
            for k, value in values.items() if isinstance(values, dict) else ():
                if is_number(value) and str(k).isdecimal():
                    point = (record["iteration"], 100 * value)
                    found.setdefault(f"R@{k}{where}", []).append(point)
    if not found:
        return None
    traces = [_line(name, points, n) for n, (name, points) in enumerate(found.items())]
    return _figure(traces, "iteration", "Recall@K in percent")


def recall_by_k(ranks: NDArray[np.int32]) -> Figure:
    """Return Recall@K by K, from the ranks r(q) of the queries."""
    import numpy as np

    last = max(2, min(_MOST_K, len(ranks)))
    counts = np.bincount(np.clip(ranks, 0, last + 1), minlength=last + 2)[1 : last + 1]
    recall = 100 * counts.cumsum() / max(1, len(ranks))
    points = list(zip(range(1, last + 1), recall.tolist(), strict=True))
    figure = _figure([_line("Recall@K", points, mode="lines")], "K", "Recall@K in percent")
    figure["layout"]["xaxis"] |= {"type": "log", "tickvals": [1, 2, 5, 10, 20, 50, 100]}
    figure["layout"]["showlegend"] = False
    return figure


def logged(metrics: Metrics, key: str) -> list[tuple[float, float]]:
    """Return the numbers that were logged under a key, with their iterations."""
    return [(r["iteration"], r[key]) for r in metrics if is_number(r.get(key))]


def is_number(value: object) -> bool:
    """Return whether a value can be drawn."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < 1e300  # not NaN either; larger integers are not doubles


def _line(
    name: str,
    points: Iterable[tuple[Any, float]],
    number: int = 0,
    mode: str = "lines+markers",
    line: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    xs, ys = zip(*points, strict=True)
    return {
        "type": "scatter",
        "mode": mode,
        "name": text(name),
        "x": list(xs),
        "y": [round(y, 5) for y in ys],
        "line": dict(line or {"dash": _DASHES[number % len(_DASHES)]}),
        "marker": {"symbol": _MARKERS[number % len(_MARKERS)], "size": 6},
    }


def _figure(traces: list[dict[str, Any]], x: str, y: str, **layout: Any) -> Figure:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return {"data": traces, "layout": {**axes, "showlegend": len(traces) > 1, **layout}}


def sweep(found: Sweep) -> Figure:
    """Return Recall@K by a setting, with the deviation over the seeds, and the paper's numbers."""
    traces = []
    for number, series in enumerate(found.series):
        xs = [point.text if found.in_words else point.x for point in series.points]
        trace = _line(series.name, zip(xs, _means(series), strict=True), number)
        deviations = [point.recall.deviation for point in series.points]
        if any(deviations):
            trace["error_y"] = {"array": [d or 0 for d in deviations], "thickness": 1.2, "width": 4}
        traces.append(trace)
        papers = [
            (x, point.paper)
            for x, point in zip(xs, series.points, strict=True)
            if point.paper is not None
        ]
        if papers:
            traces.append(_line(f"{series.name}, paper", papers, number + 3))
    figure = _figure(traces, text(found.title), f"Recall@{found.k} in percent")
    figure["layout"]["xaxis"] |= _axis(found)
    return figure


def _means(series: Series) -> list[float]:
    return [point.recall.mean for point in series.points]


def _axis(found: Sweep) -> dict[str, Any]:
    """Return an axis with a tick at each value."""
    if found.in_words:
        return {"type": "category"}
    xs = sorted({point.x for series in found.series for point in series.points})
    ticks = {"tickvals": xs, "ticktext": [f"{x:g}" for x in xs]}
    return {**ticks, "type": "log" if by_ratio(xs) else "linear"}


def by_ratio(xs: Sequence[float]) -> bool:
    """Return whether ascending values are further apart on a logarithmic axis."""
    return xs[0] > 0 and _least_gap([math.log(x) for x in xs]) > _least_gap(xs)


def _least_gap(xs: Sequence[float]) -> float:
    return min(b - a for a, b in itertools.pairwise(xs)) / (xs[-1] - xs[0])
