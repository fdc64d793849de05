"""How a run was chosen on held-out classes, in words, from its record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.config.schema import Config


def note(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how the runs of an experiment were chosen; None if no classes were held out."""
    validation = records[0].get("validation")
    if validation is None:
        return None
    classes = of_training_classes(validation["share"])
    chosen = []
    if records[0].get("iterate") == "best":
        iterations = [str(record.get("iteration")) for record in records]
        chosen.append(f"iteration{'s' * (len(iterations) > 1)} {', '.join(iterations)}")
    if records[0].get("selection"):
        chosen.append(settings(records[0]["selection"]))
    if not chosen:
        return f"trained without {classes}; nothing was chosen on them"
    return f"chosen on {classes}: {'; '.join(chosen)}"


def settings(selection: Mapping[str, Any]) -> str:
    """Return the chosen settings, each with the values that it was chosen from."""
    return "; ".join(
        f"{key}={selection['settings'].get(key, 'none')} of {', '.join(values)}"
        for key, values in selection["among"].items()
    )


def on_all_classes(config: Config, source: str, iteration: int, seeds: Sequence[int] = ()) -> str:
    """Return the command that trains on all classes, for the best number of iterations.

    The learning rates are the beginning of the original schedule, not a shorter schedule.
    """
    command = ["zoo", "run", source, "evaluate.validation=null"]
    if config.evaluate.every is not None:
        command.append("evaluate.every=null")
        if iteration < config.train.iterations:
            command.append(f"train.iterations={iteration}")
            command.append(f"schedule.over={config.schedule.over or config.train.iterations}")
    if len(seeds) > 1:
        command += ["--seeds", ",".join(map(str, seeds))]
    return shlex.join(command)


def of_training_classes(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:g} % of the training classes"
