"""Figures for papers, drawn by matplotlib: curves, sweeps and maps, as PNG, SVG or PDF."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.report import charts, collect, sweeps, tsne
from zoo.report.collect import ReportedRun
from zoo.report.thumbnails import SIDE, shrink
from zoo.runs.experiments import find
from zoo.runs.folder import RANKS
from zoo.support.files import check_folder, replace_file, writing
from zoo.support.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".pdf", ".svg", ".png")

_RIGHT, _WRONG = "#0072b2", "#d55e00"
# Okabe and Ito's colours without the yellow, which is too light on paper; lines differ in dash and
# marker too, so that they can be told apart in a grey print.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COLUMN, _PAGE = 3.4, 6.9  # inches: width of a column and of the text of a page
_PICTURE = 0.24  # inches
_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # the font type that most publishers require
    "svg.hashsalt": "zoo",
    "image.composite_image": False,  # each picture keeps its own resolution
    "text.parse_math": False,  # a class may be called $x
    "text.usetex": False,  # even if matplotlibrc has it: LaTeX may be missing
}


def find_runs(names: Sequence[str]) -> list[ReportedRun]:
    """Return the runs of some names: each of a run, an experiment, or a folder of runs.

    Raises:
        UserError: if a name is none of these.
    """
    found: dict[Path, ReportedRun] = {}
    for name in names:
        folder = Path(name)
        try:
            runs = [run for one in find(name) for run in collect.collect(one.path)]
        except UserError:
            if not name or not folder.is_dir() or not any(folder.rglob("result.json")):
                raise
            runs = collect.collect(folder)
        found |= {run.folder.path.resolve(): run for run in runs}
    return [replace(run, page=str(n)) for n, run in enumerate(found.values())]


def check_output(path: Path) -> None:
    """Refuse a file that cannot become a figure, before anything is computed.

    Raises:
        UserError: with the possible endings; or there is no such folder, or it cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: a figure is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    check_folder(path)


def curves(runs: Sequence[ReportedRun], output: Path) -> None:
    """Draw the loss by iteration, and Recall@K; seeds are thin lines around their mean.

    Raises:
        UserError: if no loss was logged, or the file cannot be written.
    """
    check_output(output)
    groups = list(_experiments(runs))
    losses = [
        (label, [p for run in own if (p := charts.logged(run.metrics, "loss"))])
        for label, own in groups
    ]
    if not any(lines for _, lines in losses):
        raise UserError(f"{runs[0].folder.path}: no loss was logged, so there is no curve")
    with _style():
        figure, (left, right) = _panels(2)
        for number, (label, lines) in enumerate(losses):
            _draw_lines(left, label, lines, number)
        left.set(xlabel="iteration", ylabel="training loss")
        _draw_recall(right, groups)
        _legend(figure, left)
        _save(figure, output)


def sweep(runs: Sequence[ReportedRun], output: Path, setting: str | None = None) -> None:
    """Draw Recall at the first K by each setting that was swept, or by one of them.

    Raises:
        UserError: if nothing was swept, or the file cannot be written.
    """
    check_output(output)
    found = [
        (board.title, one) for board in collect.boards(runs) for one in sweeps.find(board.rows)
    ]
    known = list(dict.fromkeys(one.setting for _, one in found))
    if not found:
        raise UserError(
            "these runs are not a sweep: no two differ in one number only; "
            "zoo run --sweep KEY=A,B makes one"
        )
    chosen = [(title, one) for title, one in found if setting in (None, one.setting)]
    if not chosen:
        raise UserError(printable(f"{setting}: not swept by these runs; {', '.join(known)} are"))
    with _style():
        figure, panels = _panels(len(chosen))
        for panel, (title, one) in zip(panels, chosen, strict=True):
            _draw_sweep(panel, one)
            panel.set_title(printable(title))
        _save(figure, output)


def draw_map(runs: Sequence[ReportedRun], output: Path, items: int, reporter: Reporter) -> None:
    """Draw the t-SNE of the test embedding of each run, with pictures where there is room.

    Raises:
        UserError: if a network or its images are missing, or the file cannot be written.
    """
    from zoo.trained.network import load

    check_output(output)
    with _style():
        figure, panels = _panels(len(runs), side=_PAGE if len(runs) == 1 else _PAGE / 2)
        for panel, run in zip(panels, runs, strict=True):
            trained = load(str(run.folder.path))
            embeddings, labels = trained.embed_test(reporter)
            chosen = tsne.sample(labels, items)
            ranks = run.folder.ranks()
            if len(ranks) != len(labels):
                raise UserError(f"{run.folder.path}: ranks.npy does not match the test images")
            if len(chosen) < len(labels):
                count = f"{len(chosen):,} of {len(labels):,} test images"
                reporter.say(f"{run.name}: {count}, about the same share of each class")
            places = tsne.project(tsne.vectors(embeddings[chosen], trained.space))
            _draw_dots(panel, places, ranks[chosen] == 1)
            dataset = trained.test_split()
            width = panel.get_position().width * figure.get_figwidth()
            for n in tsne.with_room(places, _PICTURE / width):
                _draw_picture(panel, places, n, dataset[int(chosen[n])][0], width)
            if len(runs) > 1:
                panel.set_title(printable(run.name))
        _save(figure, output)


def _draw_dots(panel: Axes, places: NDArray[np.float32], right: NDArray[np.bool_]) -> None:
    low, high = places.min(0), places.max(0)
    margin = 0.03 * (high - low)
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), xticks=[], yticks=[])
    panel.set_ylim(low[1] - margin[1], high[1] + margin[1])
    panel.spines[:].set_visible(False)
    for mask, colour, marker, label in (
        (right, _RIGHT, "o", "nearest image: same class"),
        (~right, _WRONG, "x", "another class"),
    ):
        x, y = places[mask].T
        panel.scatter(x, y, s=5, c=colour, marker=marker, linewidths=0.7, label=label)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False)


def _draw_picture(
    panel: Axes, places: NDArray[np.float32], n: int, image: Any, width: float
) -> None:
    """Draw an image at its place, ``_PICTURE`` wide, in a square panel."""
    pixels = np.asarray(shrink(image, SIDE).convert("RGB"))
    share = 0.46 * _PICTURE / width / max(pixels.shape[:2])
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    x, y = places[n]
    across, up = share * pixels.shape[1] * (right - left), share * pixels.shape[0] * (top - bottom)
    panel.imshow(pixels, extent=(x - across, x + across, y - up, y + up), aspect="auto", zorder=3)
    panel.set(xlim=(left, right), ylim=(bottom, top))


def _draw_lines(
    panel: Axes, label: str, lines: Sequence[Sequence[tuple[float, float]]], number: int
) -> None:
    """Draw the mean of some lines, and each line thin."""
    look = _look(number)
    for line in lines if len(lines) > 1 else ():
        panel.plot(*zip(*line, strict=True), color=look["color"], linewidth=0.5, alpha=0.45)
    if lines:
        by_x: dict[float, list[float]] = {}
        for x, y in (point for line in lines for point in line):
            by_x.setdefault(x, []).append(y)
        whole = {x: ys for x, ys in by_x.items() if len(ys) == len(lines)} or by_x
        points = [(x, float(np.mean(ys))) for x, ys in sorted(whole.items())]
        every = max(1, len(points) // 8)
        panel.plot(*zip(*points, strict=True), label=label, markevery=every, **look)


def _draw_recall(panel: Axes, groups: Sequence[tuple[str, list[ReportedRun]]]) -> None:
    """Draw Recall@1 by iteration if it was measured during training, else Recall@K by K."""
    along = [(label, [p for r in own if (p := _recall_along(r))]) for label, own in groups]
    if any(lines for _, lines in along):
        for number, (label, lines) in enumerate(along):
            _draw_lines(panel, label, lines, number)
        panel.set(xlabel="iteration", ylabel="Recall@1 in percent")
        return
    for number, (label, own) in enumerate(groups):
        lines = [_recall_by_k(run) for run in own if run.result is not None]
        _draw_lines(panel, label, lines, number)
    panel.set(xlabel="K", ylabel="Recall@K in percent", xscale="log")
    _plain_ticks(panel, [1, 2, 4, 8, 16, 32, 64])


def _recall_along(run: ReportedRun) -> list[tuple[float, float]]:
    found = []
    for record in run.metrics:
        recall = record.get("recall")
        value: Any = recall.get("1") if isinstance(recall, dict) else None
        if charts.is_number(value):
            found.append((record["iteration"], 100 * value))
    return found


def _recall_by_k(run: ReportedRun) -> list[tuple[float, float]]:
    """Return Recall@K at every K; without the file of ranks, at those of the result."""
    if not (run.folder.path / RANKS).is_file():
        recall = (run.result or {})["recall"]
        return sorted((int(k), 100 * value) for k, value in recall.items())
    line = charts.recall_by_k(run.folder.ranks())["data"][0]
    return list(zip(line["x"], line["y"], strict=True))


def _draw_sweep(panel: Axes, found: sweeps.Sweep) -> None:
    texts = list(dict.fromkeys(point.text for one in found.series for point in one.points))
    for number, one in enumerate(found.series):
        xs = [texts.index(p.text) if found.in_words else p.x for p in one.points]
        means = [point.recall.mean for point in one.points]
        errors = [point.recall.deviation or 0 for point in one.points]
        name, look = printable(one.name), _look(number)
        panel.errorbar(xs, means, errors if any(errors) else None, capsize=2, label=name, **look)
        papers = [(x, p.paper) for x, p in zip(xs, one.points, strict=True) if p.paper is not None]
        if papers:
            look = {**look, "markerfacecolor": "white", "alpha": 0.6}
            panel.plot(*zip(*papers, strict=True), label=f"{name}, paper", **look)
    panel.set(xlabel=printable(found.title), ylabel=f"Recall@{found.k} in percent")
    if found.in_words:
        panel.set_xticks(range(len(texts)), texts)
    else:
        values = sorted({point.x for one in found.series for point in one.points})
        panel.set_xscale("log" if charts.by_ratio(values) else "linear")
        _plain_ticks(panel, values)
    if len(panel.get_legend_handles_labels()[1]) > 1:
        panel.legend(frameon=False)


def _plain_ticks(panel: Axes, values: Sequence[float]) -> None:
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.set_xticks([], minor=True)


def _experiments(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, list[ReportedRun]]]:
    """Yield the name and runs of each experiment; an unfinished run is its own experiment."""
    by_page = {run.page: run for run in runs}
    rows = [row for board in collect.boards(runs) for row in board.rows]
    names = Counter(row.name for row in rows)
    for row in rows:
        own = [by_page.pop(result["page"]) for result in row.results]
        settings = row.settings[:2] if names[row.name] > 1 else ()
        yield printable(" ".join([row.name, *settings])), own
    for run in by_page.values():
        yield printable(run.name), [run]


def _look(number: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def _style() -> Any:
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def _panels(count: int, side: float | None = None) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, each as wide as a column; square if a side is given."""
    from matplotlib.figure import Figure

    columns = min(count, 2)
    rows = math.ceil(count / columns)
    width = side or _COLUMN
    size = (width * columns, (side or 2.4) * rows)
    figure = Figure(size, layout="constrained" if side is None else None)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    if side is not None:
        figure.subplots_adjust(0.02, 0.06, 0.98, 0.96, wspace=0.04, hspace=0.14)
    return figure, panels[:count]


def _legend(figure: Figure, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)


def _save(figure: Figure, output: Path) -> None:
    """Write a figure atomically."""
    kind = output.suffix.lower()[1:]
    dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=300, metadata=dates.get(kind))
    with writing(output):
        replace_file(output, lambda file: file.write(buffer.getvalue()))
