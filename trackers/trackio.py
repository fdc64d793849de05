"""Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._shared import require_package


class TrackioTracker:
    """Log a run to Trackio, which keeps it on this machine: ``trackio show`` draws the curves.

    A run that was stopped goes on as the same run there.

    Args:
        project: its name there.
        run_name: supplied by the run.
        settings: supplied by the run.

    Raises:
        UserError: the package ``trackio`` is not installed.
    """

    def __init__(
        self, run_name: str, settings: Mapping[str, Any], project: str = "metric-zoo"
    ) -> None:
        self._trackio = require_package("trackio", "trackio")
        self._name, self._project, self._settings = run_name, project, dict(settings)

    def begin(self, iteration: int) -> None:
        """Start a run there, or go on with it."""
        self._run = self._trackio.init(
            project=self._project,
            name=self._name,
            config=self._settings,
            resume="allow" if iteration else "never",
        )

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log the numbers of an iteration."""
        self._run.log(dict(values), step=iteration)

    def end(self, finished: bool) -> None:
        """Send what is left."""
        self._run.finish()
