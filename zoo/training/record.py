"""The content of a run's ``result.json``."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zoo.config.schema import Config
from zoo.data.splits import fingerprint
from zoo.evaluation.recall import Recall
from zoo.runs.plugins import plugins_of
from zoo.support import environment
from zoo.training.chosen import Chosen
from zoo.training.experiment import Experiment
from zoo.training.loop import Clock
from zoo.training.measure import scores


def result_of(
    experiment: Experiment,
    chosen: Chosen | None,
    clock: Clock,
    recall: Recall | None = None,
    evaluation_seconds: float = 0.0,
) -> dict[str, Any]:
    """Return the result of a run; without Recall@K of the test classes if it was not measured."""
    config, test = experiment.config, experiment.test
    measured: dict[str, Any] = {}
    if recall is not None:
        counts = {"queries": recall.queries, "unmatched": recall.unmatched}
        measured = {"recall": scores(recall), **counts}
    return {
        "run": config.run_name(),
        "config": config.name,
        "digest": config.digest(),
        "seed": config.seed,
        "dataset": {
            "name": config.dataset.name,
            "folder": _folder_name(config),
            "fingerprint": fingerprint(config, test),
            "classes": len(test.class_names),
            "images": len(test),
        },
        "loss": config.loss.name if config.loss and config.train.iterations else None,
        "backbone": config.model.backbone.name,
        "embedding_size": experiment.embedder.embedding_size,
        **measured,
        "settings": config.settings(),
        "iterate": "best" if chosen and chosen.keep else "last",
        "iteration": chosen.iteration if chosen else config.train.iterations,
        "iterations": config.train.iterations,
        "validation": _validation(experiment, chosen) if chosen else None,
        "paper": config.paper.model_dump(mode="json") if config.paper else None,
        "seconds": {
            "training": round(clock.seconds, 3),
            "evaluation": round(evaluation_seconds, 3),
        },
        "images_per_second": round(clock.images / clock.seconds, 1) if clock.seconds else None,
        "precision": experiment.precision,
        "plugins": plugins_of(config),
        "versions": environment.versions(),
        "hardware": {
            **environment.hardware(experiment.device),
            "processes": experiment.ranks.size,
        },
        "git": environment.git_state(),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _validation(experiment: Experiment, chosen: Chosen) -> dict[str, Any]:
    """Return the held-out classes, the checkpoint chosen on them, and its Recall@K there."""
    held = experiment.validation
    assert held is not None
    return {
        "share": experiment.config.evaluate.validation,
        "classes": len(held.class_names),
        "images": len(held),
        "recall": scores(chosen.recall),
    }


def _folder_name(config: Config) -> str:
    """Return the last part of the path of the image folder; empty if none is given."""
    root = config.dataset.arguments.get("root")
    return Path(root).expanduser().resolve().name if isinstance(root, str) else ""
