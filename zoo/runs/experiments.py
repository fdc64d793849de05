"""Runs by name: one run, or all the seeds of one experiment."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from zoo.errors import UserError, one_of
from zoo.runs.folder import CONFIG, RunFolder
from zoo.support.text import printable

_NAME = re.compile(r"(?P<experiment>(?P<config>.+)-[0-9a-f]{8})-s[0-9]+")


def find(text: str, directory: str | Path = "runs") -> list[RunFolder]:
    """Return the finished runs that a text names: one, or the seeds of one experiment.

    Args:
        text: what :meth:`RunFolder.find` takes; or the name of an experiment, ``<config>-<digest>``
            or the beginning of it, in ``directory`` or with the path of its folder.
        directory: where to look for names without a folder.

    Raises:
        UserError: if there is no such run, several experiments match, or no run is finished.
    """
    path = Path(text)
    place, name = (path.parent, path.name) if len(path.parts) > 1 else (Path(directory), str(path))
    experiments = {} if (path / CONFIG).is_file() else _experiments(place, name)
    if len(experiments) > 1:
        raise UserError(printable(f"{text} may be {one_of(list(experiments))}; say which"))
    if not experiments:
        runs = [RunFolder.find(text, directory)]
    else:
        (runs,) = experiments.values()
    return _finished(text, runs)


def _experiments(place: Path, beginning: str) -> dict[str, list[RunFolder]]:
    """Return the runs of each experiment in a folder whose name begins with a text.

    If the text is the whole name of one, with or without its digest, only that one is returned.
    """
    found: dict[str, list[RunFolder]] = {}
    exact: dict[str, list[RunFolder]] = {}
    for path in sorted(place.glob(f"*/{CONFIG}")):
        name = path.parent.name
        parts = _NAME.fullmatch(name)
        if parts is None or not beginning or not name.startswith(beginning):
            continue
        run, experiment = RunFolder(path.parent), parts["experiment"]
        if name == beginning:
            return {name: [run]}
        found.setdefault(experiment, []).append(run)
        if beginning in (experiment, parts["config"]):
            exact.setdefault(experiment, []).append(run)
    return exact or found


def _finished(text: str, runs: list[RunFolder]) -> list[RunFolder]:
    finished = [run for run in runs if run.finished]
    if not finished:
        what = f"{runs[0].path}: the run is not finished" if len(runs) == 1 else f"{text}: no run"
        what += "" if len(runs) == 1 else f" of {len(runs)} is finished"
        raise UserError(printable(f"{what}; the command that started it resumes it"))
    left = [run.path.name for run in runs if not run.finished]
    if left:
        warnings.warn(printable(f"not finished, left out: {', '.join(left)}"), stacklevel=3)
    return finished
