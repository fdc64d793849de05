"""Read run folders for a report; a damaged one has a reason instead of a result."""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import UserError, did_you_mean
from zoo.runs.folder import CONFIG, RESULT, RunFolder
from zoo.support.files import open_regular
from zoo.support.text import printable
from zoo.tables import leaderboard

_WHAT_TO_DO = "name a folder with runs, or make one: zoo run ice_glyphs"
_LONGEST = 1 << 18  # characters of a config that are shown


@dataclass(frozen=True)
class ReportedRun:
    """One run folder.

    Attributes:
        folder: the folder of the run.
        page: the file name of its page.
        result: its result; None if it is not finished, or the result is damaged.
        problem: why there is no result.
        config: the text of its config.yaml; empty if there is none.
        metrics: the lines of metrics.jsonl.
    """

    folder: RunFolder
    page: str
    result: dict[str, Any] | None
    problem: str | None
    config: str
    metrics: list[dict[str, Any]] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.path.name


def collect(directory: Path, pattern: str = "*") -> list[ReportedRun]:
    """Return the runs under a directory whose names match a pattern, finished or not.

    Raises:
        UserError: if there is no such directory, or no such run in it.
    """
    if not directory.is_dir():
        problem = "is not a folder" if directory.exists() else "there is no such folder"
        raise UserError(f"{directory}: {problem}; {_WHAT_TO_DO}")
    every = {path.parent for name in (CONFIG, RESULT) for path in directory.rglob(name)}
    if not every:
        raise UserError(f"{directory}: no run in it; {_WHAT_TO_DO}")
    chosen = [path for path in sorted(every) if fnmatch.fnmatchcase(path.name, pattern)]
    if not chosen:
        hint = did_you_mean(pattern, [path.name for path in every])
        raise UserError(printable(f"{directory}: no run is called {pattern}{hint}"))
    return [_read(path, page) for path, page in zip(chosen, _pages(chosen), strict=True)]


def boards(runs: Iterable[ReportedRun]) -> list[leaderboard.Board]:
    """Return the leaderboards of the finished runs; each result has its ``page``."""
    return leaderboard.boards(
        {"settings": run.folder.settings(), **run.result, "page": run.page}
        for run in runs
        if run.result is not None
    )


def _read(path: Path, page: str) -> ReportedRun:
    folder = RunFolder(path)
    result, problem = None, None
    try:
        if folder.finished:
            result = folder.result()
        else:
            problem = _why_unfinished(folder)
    except UserError as error:
        problem = str(error)
    try:
        metrics = folder.metrics()
    except UserError:
        metrics = []
    return ReportedRun(folder, page, result, problem, _config(path / CONFIG), metrics)


def _why_unfinished(folder: RunFolder) -> str:
    if folder.validated:
        return (
            "The run was measured on held-out classes and not chosen, so it was never tested: "
            "there is no Recall@K."
        )
    return "The run is not finished, so there is no Recall@K; the same command resumes it."


def _config(path: Path) -> str:
    try:
        with open_regular(path) as file, io.TextIOWrapper(file, "utf-8", "replace") as text_file:
            text = text_file.read(_LONGEST + 1)
    except OSError:
        return ""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n# … and more"


def _pages(paths: Iterable[Path]) -> list[str]:
    """Return a file name for each run, valid on any disk; no two differ only in case."""
    taken: set[str] = set()
    pages = []
    for path in paths:
        stem = re.sub(r"[^\w.-]+", "-", path.name, flags=re.ASCII).strip(".-")[:120] or "run"
        name, number = stem, 1
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        pages.append(f"{name}.html")
    return pages
