"""Trackers of the zoo: one file per tracker, one line per tracker in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.trackers":
    raise ImportError(f"import zoo.trackers, not {__name__}")

BUILTIN: dict[str, dict[str, str]] = {
    "trackers": {
        "csv": "zoo.trackers.csv:CSVTracker",
        "mlflow": "zoo.trackers.mlflow:MLflowTracker",
        "tensorboard": "zoo.trackers.tensorboard:TensorBoardTracker",
        "trackio": "zoo.trackers.trackio:TrackioTracker",
        "wandb": "zoo.trackers.wandb:WandbTracker",
    },
}
