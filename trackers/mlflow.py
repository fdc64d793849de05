"""MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._shared import flat, identifier, remember, require_package

_MOST_SETTINGS = 100  # in one request
_LONGEST = 500  # characters of a setting that every version takes
# MLflow would try for many minutes to reach a server that is gone, while the run waits.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MLflowTracker:
    """Log a run to MLflow.

    Settings become parameters such as ``loss.scale``. A run that was stopped goes on as the same
    run there. If the server cannot be reached, MLflow tries three times and waits up to 20 seconds
    each time, unless ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` and ``MLFLOW_HTTP_REQUEST_TIMEOUT`` are
    set.

    Args:
        uri: of the server or store, such as ``http://localhost:5000``; by default
            ``MLFLOW_TRACKING_URI``, else what MLflow takes: a store in the working folder.
        experiment: its name there; it is created if there is none.
        run_folder: supplied by the run.
        run_name: supplied by the run.
        settings: supplied by the run.

    Raises:
        UserError: the package ``mlflow`` is not installed.
    """

    def __init__(
        self,
        run_folder: Path,
        run_name: str,
        settings: Mapping[str, Any],
        uri: str | None = None,
        experiment: str = "metric-zoo",
    ) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._mlflow = require_package("mlflow", "mlflow")
        self._entities = require_package("mlflow.entities", "mlflow")
        self._folder, self._name, self._settings = Path(run_folder), run_name, flat(settings)
        self._uri, self._experiment = uri, experiment

    def begin(self, iteration: int) -> None:
        """Create a run there, or go on with it."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        path = self._folder / "mlflow.id"
        self._run, known = identifier(path, iteration)
        if known:
            self._client.update_run(self._run, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        place = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(place, run_name=self._name).info.run_id
        parameters = [
            self._entities.Param(key, value[:_LONGEST]) for key, value in self._settings.items()
        ]
        for start in range(0, len(parameters), _MOST_SETTINGS):
            self._client.log_batch(self._run, params=parameters[start : start + _MOST_SETTINGS])
        self._folder.mkdir(parents=True, exist_ok=True)
        remember(path, self._run)

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log the numbers of an iteration in one request."""
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(name, float(value), now, iteration)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, finished: bool) -> None:
        """Close the run; one that was stopped is marked as killed until it goes on."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
