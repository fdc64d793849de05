"""Arguments of losses and miners that change while a network is trained.

In a config, such an argument is a map instead of a number::

    loss: {name: heated_up, scale: {from: 16, to: 4, at: 0.8}}        # at 80 % of the iterations
    loss: {name: sphereface, softening: {from: 1000, to: 5, until: 0.5, shape: geometric}}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from zoo.config.messages import sentence
from zoo.support.values import hint
from zoo.support.yaml import Keys

_Share = Annotated[float, Field(ge=0, le=1)]
_ENDS = ("from", "to")


class ArgumentSchedule(BaseModel):
    """How a number changes with the share of the iterations that is done, from 0 to 1.

    It jumps at one share, or else changes gradually from one share to another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    start: float = Field(alias="from", description="value at first")
    end: float = Field(alias="to", description="value at the end")
    at: _Share | None = Field(
        default=None,
        description="share of the iterations after which the value jumps; null: it "
        "changes gradually",
    )
    since: _Share | None = Field(
        default=None, description="share after which it begins to change; null: 0"
    )
    until: _Share | None = Field(default=None, description="share at which it has changed; null: 1")
    shape: Literal["linear", "cosine", "geometric"] | None = Field(
        default=None,
        description="of a gradual change: along a line, as half a cosine, or by a constant factor "
        "at each iteration; null: linear",
    )

    @model_validator(mode="after")
    def _agree(self) -> ArgumentSchedule:
        gradual = (self.since, self.until, self.shape)
        if self.at == 1:
            raise _contradiction("at 1 all iterations are done; give a smaller share, such as 0.8")
        if self.at is not None and gradual != (None, None, None):
            raise _contradiction("a jump (at) has no since, until or shape")
        if not (self.since or 0.0) < (1.0 if self.until is None else self.until):
            raise _contradiction("since must be less than until")
        if self.shape == "geometric" and not self.start * self.end > 0:
            raise _contradiction(
                "shape: geometric needs two numbers of one sign, neither of them 0"
            )
        return self

    def value(self, share: float) -> float:
        """Return the value when this share of the iterations is done."""
        if self.at is not None:
            return self.start if share < self.at else self.end
        since, until = self.since or 0.0, 1.0 if self.until is None else self.until
        done = min(1.0, max(0.0, (share - since) / (until - since)))
        if done in (0.0, 1.0):  # exactly
            return self.end if done else self.start
        if self.shape == "geometric":
            return float(self.start * math.pow(self.end / self.start, done))
        if self.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done


_KEYS = [field.alias or name for name, field in ArgumentSchedule.model_fields.items()]


def _contradiction(message: str) -> PydanticCustomError:
    return PydanticCustomError("contradiction", "{message}", {"message": message})


def is_schedule(value: object) -> bool:
    """Return whether the value of an argument is meant as a schedule."""
    return isinstance(value, Mapping) and value.keys() >= set(_ENDS) and "name" not in value


def has_schedules(arguments: Any) -> bool:
    """Return whether an argument has a schedule, nested components included."""
    return any(True for _ in _found(arguments, ()))


def arguments_at(arguments: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return arguments with the values that they have when a share of the iterations is done."""
    changed: dict[str, Any] = _at(arguments, share)
    return changed


def faults(arguments: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield what is wrong with the schedules among some arguments."""
    for keys, given in _found(arguments, ()):
        try:
            ArgumentSchedule.model_validate(given)
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                if problem["type"] == "extra_forbidden":
                    unknown = str(problem["loc"][0])
                    yield (*keys, unknown), "unknown key" + hint(unknown, _KEYS)
                else:
                    inner, message = sentence(problem)
                    yield (*keys, *inner), message


def moments(arguments: Mapping[str, Any]) -> list[float]:
    """Return shares of the iterations at which arguments have a value of each kind."""
    gradual = any(given.get("at") is None for _, given in _found(arguments, ()))
    return [0.0, 0.5, 1.0] if gradual else [0.0, 1.0]


def _found(value: Any, keys: Keys) -> Iterator[tuple[Keys, Mapping[str, Any]]]:
    if is_schedule(value):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _found(inner, (*keys, key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _found(inner, (*keys, i))


def _at(value: Any, share: float) -> Any:
    if is_schedule(value):
        now = ArgumentSchedule.model_validate(value).value(share)
        # A whole number stays one.
        return next((value[end] for end in _ENDS if value[end] == now), now)
    if isinstance(value, Mapping):
        return {key: _at(inner, share) for key, inner in value.items()}
    return [_at(inner, share) for inner in value] if isinstance(value, list | tuple) else value
