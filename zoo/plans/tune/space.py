"""The settings to search, from text such as ``loss.scale=log:1..100`` or ``loss=ice,rll``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.errors import UserError
from zoo.support import yaml

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_RANGE = re.compile(r"(log:)?([^.,\s]\S*?|\.\d\S*?)\.\.(\S+)")
_FORM = "must be of the form KEY=0.1..2, KEY=log:1..100 or KEY=a,b,c"
_DIGITS = 4  # of a real number that is tried


@dataclass(frozen=True)
class Dimension:
    """A setting to search.

    Attributes:
        key: such as ``loss.scale``.
        text: its values, as the user wrote them.
        values: for a choice, its values as they are written in a config.
        low, high: for a range, its ends.
        log: whether a range is searched on a logarithmic scale.
        whole: whether only whole numbers are tried.
    """

    key: str
    text: str
    values: tuple[str, ...] = ()
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    whole: bool = False

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution that Optuna draws from."""
        from optuna import distributions

        if self.values:
            return distributions.CategoricalDistribution(self.values)
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    @property
    def examples(self) -> tuple[str, ...]:
        """The values of a choice, or one value of a range, as they are written in a config."""
        return self.values or (self.written(int(self.low) if self.whole else self.low),)

    def written(self, value: Any) -> str:
        """Return a value that was drawn as it is written in a config, with a few digits."""
        if self.values or self.whole:
            return str(value)
        rounded = float(f"{value:.{_DIGITS}g}")
        return yaml.inline(min(max(rounded, self.low), self.high))


def dimension(text: str, check: Callable[[str], None]) -> Dimension:
    """Return the setting that a text such as ``loss.scale=log:1..100`` describes.

    Args:
        text: the key and its values.
        check: raises a UserError for a setting, such as ``loss.scale=10``, that no run can have.

    Raises:
        UserError: the text has another form, or a value cannot be set.
    """
    key, equals, values = text.partition("=")
    key, values = key.strip(), values.strip()
    if not (key and equals and values):
        raise UserError(f"--space {text}: {_FORM}")
    found = _RANGE.fullmatch(values)
    if found is None:
        return _choice(key, values, text, check)
    log, low, high = bool(found[1]), _number(found[2], text), _number(found[3], text)
    if low >= high:
        raise UserError(f"--space {text}: the range goes from {low:g} to {high:g}, which is empty")
    if log and low <= 0:
        raise UserError(f"--space {text}: a logarithmic range must begin above 0")
    whole = low.is_integer() and high.is_integer() and not _takes(key, _inside(low, high), check)
    made = Dimension(key, values, low=low, high=high, log=log, whole=whole)
    for end in (low, high):
        _refuse(text, f"{key}={int(end) if whole else yaml.inline(end)}", check)
    return made


def _choice(key: str, values: str, text: str, check: Callable[[str], None]) -> Dimension:
    problems: list[yaml.Problem] = []
    node = yaml.parse(f"[{values}]", "--space", problems)
    if problems or node is None:
        raise UserError(f"--space {text}: {_FORM}")
    written = tuple(dict.fromkeys(yaml.inline(value) for value in node.plain()))
    if len(written) < 2:
        raise UserError(f"--space {text}: one value leaves nothing to search; {_FORM}")
    for value in written:
        _refuse(text, f"{key}={value}", check)
    return Dimension(key, values, values=written)


def _number(text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"--space {whole}: {text!r} is not a number; {_FORM}")
    return number


def _inside(low: float, high: float) -> float:
    """Return a number of the range that is not a whole one."""
    return low + (high - low) * 0.37 if high - low < 1 else math.floor((low + high) / 2) + 0.5


def _takes(key: str, value: float, check: Callable[[str], None]) -> bool:
    """Return whether a setting takes numbers that are not whole."""
    try:
        check(f"{key}={value}")
    except UserError:
        return False
    return True


def _refuse(text: str, setting: str, check: Callable[[str], None]) -> None:
    try:
        check(setting)
    except UserError as error:
        raise UserError(f"--space {text}: {setting} cannot be set:\n{error}") from None
