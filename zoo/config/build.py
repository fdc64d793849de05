"""A component from its section of a config."""

from __future__ import annotations

from typing import Any

from zoo import registry
from zoo.config import loading, schedules
from zoo.config.schema import ComponentSpec
from zoo.errors import UserError


def refuse(spec: ComponentSpec, fault: str | None, part: str = "") -> None:
    """Raise a UserError if a fault was found with a component."""
    if fault:
        raise UserError(f"{spec.name}: {part or 'it '}{fault}")


def build(kind: registry.Kind, spec: ComponentSpec, runtime: dict[str, Any]) -> Any:
    """Build a component with the arguments of its section and those that the run supplies.

    Arguments with a schedule have the values that they start with.
    """
    for argument in sorted(loading.set_by_run(kind) & set(spec.arguments)):
        raise UserError(f"{spec.name}.{argument}: {loading.SET_BY_RUN}")
    return registry.assemble(kind, spec.name, schedules.arguments_at(spec.arguments, 0.0), runtime)
