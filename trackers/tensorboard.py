"""Event files for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._shared import require_package


class TensorBoardTracker:
    """Write event files for TensorBoard; ``tensorboard --logdir runs`` shows the curves of all.

    A run that was stopped goes on with its curves; what was logged after its last checkpoint is
    replaced. The settings of the run are under "Text".

    Args:
        folder: of the event files; a relative path starts at the run's folder.
        run_folder: supplied by the run.
        settings: supplied by the run.

    Raises:
        UserError: the package ``tensorboard`` is not installed.
    """

    def __init__(
        self, run_folder: Path, settings: Mapping[str, Any], folder: str = "tensorboard"
    ) -> None:
        self._writers = require_package("torch.utils.tensorboard", "tensorboard")
        self._folder = Path(run_folder) / Path(folder).expanduser()
        self._settings = settings

    def begin(self, iteration: int) -> None:
        """Open a file, and declare obsolete what earlier files have of later iterations."""
        self._writer = self._writers.SummaryWriter(str(self._folder), purge_step=iteration + 1)
        if not iteration:
            text = json.dumps(self._settings, indent=2).replace("\n", "\n    ")
            self._writer.add_text("settings", f"    {text}", 0)

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def end(self, finished: bool) -> None:
        """Close the file."""
        self._writer.close()
