"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from zoo.errors import UserError

from ._shared import identifier, remember, require_package


class WandbTracker:
    """Log a run to Weights & Biases.

    Log in with ``wandb login`` first, or use ``mode: offline`` and later ``wandb sync``. A run that
    was stopped goes on as the same run there. Curves are over ``iteration``.

    Args:
        project: its name there.
        entity: a user or a team; by default that of the login.
        mode: "online", or "offline" for files in the run's folder only.
        run_folder: supplied by the run.
        run_name: supplied by the run.
        settings: supplied by the run.

    Raises:
        UserError: the package ``wandb`` is not installed; the mode is unknown.
    """

    def __init__(
        self,
        run_folder: Path,
        run_name: str,
        settings: Mapping[str, Any],
        project: str = "metric-zoo",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        if mode not in ("online", "offline"):
            raise UserError(f"mode must be online or offline, not {mode!r}")
        self._wandb = require_package("wandb", "wandb")
        self._folder = Path(run_folder)
        self._given = {"name": run_name, "project": project, "entity": entity, "mode": mode}
        self._settings = dict(settings)

    def begin(self, iteration: int) -> None:
        """Start a run there, or go on with it."""
        path = self._folder / "wandb.id"
        name, _ = identifier(path, iteration)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            **self._given,
            id=name,
            resume="allow",
            config=self._settings,
            dir=str(self._folder),
        )
        remember(path, name)
        self._run.define_metric("*", step_metric="iteration")

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log the numbers of an iteration."""
        self._run.log({"iteration": iteration, **values})

    def end(self, finished: bool) -> None:
        """Close the run; one that was stopped is marked as failed until it goes on."""
        self._run.finish(exit_code=0 if finished else 1)
