"""What is searched, and the trials that were made so far, in a file of the output folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError
from zoo.plans.engines.base import Need
from zoo.plans.tune.space import Dimension, dimension
from zoo.support.files import writing
from zoo.support.optional import installed

if TYPE_CHECKING:
    from optuna.study import Study

FOLDER = ".tune"
_SHARE = 0.3  # of the training classes that are held out, if the config does not say
_LOOKS = 5  # measurements of the held-out classes during a run, if the config does not say
_NOT_SEARCHED: tuple[str, ...] = (
    "extends",
    "sweep",
    "seeds",
    "seed",
    "name",
    "output",
    "device",
    "paper",
    "evaluate",
    "train.processes",
    "train.workers",
)
_COMBINATIONS = 100  # of values that are tried out before the search
_UNFINISHED = 3  # trials that must have ended before others are pruned


@dataclass(frozen=True)
class Search:
    """A search of settings.

    Attributes:
        source: the config.
        overrides: settings for all runs.
        space: the settings to search.
        trials: how many are made.
        seeds: of the runs of each trial.
        base: the config without the settings that are searched.
        prune: whether a trial is stopped when it is worse than the median of the others.
    """

    source: str
    overrides: tuple[str, ...]
    space: tuple[Dimension, ...]
    trials: int
    seeds: tuple[int, ...]
    base: Config
    prune: bool = True

    @property
    def every(self) -> int:
        """Iterations between two measurements of the held-out classes."""
        return self.base.evaluate.every or self.base.train.iterations

    @property
    def need(self) -> Need:
        """What each run needs of an engine."""
        return Need(self.base.device, self.base.train.processes)

    @property
    def file(self) -> Path:
        """The journal of the trials."""
        described = [self.base.digest(), self.seeds, [(d.key, d.text) for d in self.space]]
        digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:8]
        return Path(self.base.output) / FOLDER / f"{self.base.name}-{digest}.journal"

    def settings(self, drawn: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings of a trial as they are written in a config."""
        return {one.key: one.written(drawn[one.key]) for one in self.space}

    def configs(self, settings: Mapping[str, str]) -> list[Config]:
        """Return the config of a trial for each seed.

        Raises:
            UserError: the settings do not fit together.
        """
        given = [*self.overrides, *(f"{key}={text}" for key, text in settings.items())]
        seeds = ",".join(map(str, self.seeds))
        return [v.config for v in loading.load_all(self.source, given, (), seeds)]

    def study(self) -> Study:
        """Open the trials.

        Raises:
            UserError: Optuna is missing, or the file is damaged or cannot be written.
        """
        optuna = module()
        from optuna.storages.journal import JournalFileBackend

        from zoo.plans.tune.sampling import Seeded

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Optuna 4 calls the journal experimental
                    storage = optuna.storages.JournalStorage(JournalFileBackend(str(self.file)))
                study: Study = optuna.create_study(
                    storage=storage,
                    study_name="zoo",
                    direction="maximize",
                    load_if_exists=True,
                    sampler=Seeded(self.base.seed),
                    pruner=optuna.pruners.MedianPruner(
                        n_startup_trials=_UNFINISHED, n_warmup_steps=self.base.train.iterations // 5
                    ),
                )
            except (ValueError, KeyError, AssertionError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{self.file}: is damaged ({type(error).__name__}); remove it: finished runs "
                    "are not trained again"
                ) from error
        return study


def make(
    source: str,
    overrides: Sequence[str],
    spaces: Sequence[str],
    trials: int,
    seeds: str | None = None,
    prune: bool = True,
) -> Search:
    """Return a search.

    Args:
        source: the path or name of a config. If it holds out no classes, 30 % of the training
            classes are held out; if it does not measure them during training, five times are added.
        overrides: settings for all runs.
        spaces: such as ``loss.scale=log:1..100``.
        trials: how many.
        seeds: of the runs of each trial, such as ``0,1``; by default the config's.
        prune: whether to stop trials that are worse than the median of the others.

    Raises:
        UserError: with every problem of the config or of the space.
    """
    module()
    for text in spaces:
        key = text.partition("=")[0].strip()
        if key.split(".")[0] in _NOT_SEARCHED or key in _NOT_SEARCHED:
            raise UserError(f"--space {text}: {key} cannot be searched: it is no part of a method")
    if not spaces:
        raise UserError("there is nothing to search; give --space, such as loss.scale=log:1..100")
    variants = loading.load_all(source, overrides, (), seeds)
    if len({v.config.digest() for v in variants}) > 1:
        raise UserError(f"{source} holds several experiments; give sweep=null to search one")
    config = variants[0].config
    iterations = config.train.iterations
    if not iterations:
        raise UserError(f"{source}: train.iterations is 0; there is nothing to train")
    given = list(overrides)
    if config.evaluate.validation is None:
        given.append(f"evaluate.validation={_SHARE}")
    if config.evaluate.every is None:
        given.append(f"evaluate.every={max(1, iterations // _LOOKS)}")

    def check(setting: str) -> None:
        loading.load_all(source, [*given, setting])

    space = tuple(dimension(text, check) for text in spaces)
    keys = [one.key for one in space]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"--space {twice}: given twice")
    _check_together(space, lambda settings: loading.load_all(source, [*given, *settings]))
    found = loading.load_all(source, given, (), seeds)
    chosen = tuple(v.config.seed for v in found)
    return Search(source, tuple(given), space, trials, chosen, found[0].config, prune)


def _check_together(space: Sequence[Dimension], check: Callable[[Sequence[str]], object]) -> None:
    """Refuse values that do not go together, such as a loss and the argument of another one."""
    combinations = itertools.product(*([f"{d.key}={v}" for v in d.examples] for d in space))
    for settings in itertools.islice(combinations, _COMBINATIONS):
        try:
            check(settings)
        except UserError as error:
            raise UserError(f"--space: {' '.join(settings)} do not go together:\n{error}") from None


def module() -> Any:
    """Return the module of Optuna, or raise a UserError."""
    return installed("optuna", "zoo tune", "tune")
