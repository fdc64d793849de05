"""The report: index.html, runs/<run>.html and their data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.report import charts, collect, extra, facts, render, sweeps, tables
from zoo.report.collect import ReportedRun
from zoo.report.look import Viewer
from zoo.report.output import Output, opened
from zoo.tables.boards import Row


class Summary(NamedTuple):
    """What was built: the first page, the number of runs, and runs without a gallery by reason."""

    page: Path
    runs: int
    missing: dict[str, list[str]]


def build(
    directory: Path,
    output: Path,
    *,
    runs: str = "*",
    queries: int = 24,
    items: int = 2000,
    reporter: Reporter | None = None,
) -> Summary:
    """Write the report of the runs under a directory.

    Each page is replaced atomically after the files it links to, the first page last. So if the
    process ends early, each page is of the old or of the new report, and its links work.

    Args:
        directory: the folder of run folders.
        output: the folder to write; a report in it is replaced.
        runs: a pattern of names of runs, such as ``"ice_*"``.
        queries: how many queries a gallery has.
        items: how many images a map has at most; 0 for no maps.
        reporter: where progress is reported.

    Raises:
        UserError: if there is no such run, a package is missing, or the folder has other files.
    """
    extra.require()
    reporter = reporter or Reporter()
    found = collect.collect(directory, runs)
    with opened(output, reporter) as site:
        missing = _write(site, directory, found, queries, items, reporter)
    return Summary(output / "index.html", len(found), missing)


def _write(
    site: Output,
    directory: Path,
    found: list[ReportedRun],
    queries: int,
    items: int,
    reporter: Reporter,
) -> dict[str, list[str]]:
    """Write all pages; return the names of runs without a gallery and map, by reason."""
    boards = collect.boards(found)
    pages = render.environment()
    site.claim(["index.html", *(f"runs/{run.page}" for run in found)])
    for name, content in render.assets().items():
        site.write(f"assets/{name}", content)
    rows = {page: row for board in boards for row in board.rows for _, page in tables.runs_of(row)}
    by_page = {run.page: run for run in found}
    viewer = Viewer(site, queries, items)
    missing: dict[str, list[str]] = {}
    template = pages.get_template("run.html.j2")
    for run in reporter.track(found, len(found), "report"):
        siblings = _siblings(run, rows.get(run.page), by_page)
        look = viewer.look(run)
        if look.missing and run.result is not None and (queries or items):
            missing.setdefault(look.missing, []).append(run.name)
        view = {**_run_view(run, rows.get(run.page), siblings), "look": look}
        site.write(f"runs/{run.page}", template.render(view).encode())
    index = {
        "title": f"Leaderboard of {directory.absolute().name}",
        "tables": [tables.table(board) for board in boards],
        "sweeps": [
            (board.title, sweep, charts.sweep(sweep))
            for board in boards
            for sweep in sweeps.find(board.rows)
        ],
        "others": [run for run in found if run.page not in rows],
        "count": len(found),
        "built": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    site.write("index.html", pages.get_template("index.html.j2").render(index).encode())
    site.finish()
    return missing


def _siblings(
    run: ReportedRun, row: Row | None, by_page: dict[str, ReportedRun]
) -> list[tuple[int, ReportedRun]]:
    """Return the runs of an experiment with their seeds, including this run."""
    return [] if row is None else [(seed, by_page[page]) for seed, page in tables.runs_of(row)]


def _run_view(
    run: ReportedRun, row: Row | None, siblings: Sequence[tuple[int, ReportedRun]]
) -> dict[str, Any]:
    others = {f"seed {seed}": other.metrics for seed, other in siblings if other is not run}
    return {
        "run": run,
        "row": row,
        "siblings": siblings,
        "loss": charts.loss_curve(run.metrics, others),
        "recall": charts.recall_curve(run.metrics),
        "by_k": _by_k(run),
        "facts": facts.facts(run.result) if run.result else [],
    }


def _by_k(run: ReportedRun) -> charts.Figure | None:
    try:
        return None if run.result is None else charts.recall_by_k(run.folder.ranks())
    except UserError:
        return None
