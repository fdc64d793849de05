"""A sampler whose suggestion for a trial does not depend on interruptions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class Seeded(BaseSampler):
    """The tree-structured Parzen estimator (TPE), seeded for each trial by its number.

    A sampler with one seed would suggest its first settings again after a resumption, and two
    commands with the same seed would suggest the same.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inner = self._of(0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Begin a trial."""
        self._inner = self._of(trial.number)
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the settings that are suggested together."""
        return self._inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Suggest settings together."""
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Suggest one setting."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """End a trial."""
        self._inner.after_trial(study, trial, state, values)

    def _of(self, number: int) -> TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 calls constant_liar experimental
            return TPESampler(seed=hash((self._seed, number)) % 2**32, constant_liar=True)
