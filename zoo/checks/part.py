"""A component other than a loss under check: building it, reading what it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from zoo import registry
from zoo.base import RUNTIME
from zoo.checks.subject import CheckFailedError, blaming, construct, declared_value, find
from zoo.errors import UserError
from zoo.registry import Kind
from zoo.registry.arguments import Misfit
from zoo.registry.arguments import check as check_arguments
from zoo.support.checked import checked


class PartTraits(NamedTuple):
    """What a component declares.

    Attributes:
        random: whether two calls may give two results.
        expected_failures: names of checks that it cannot pass by its definition, with reasons.
    """

    random: bool
    expected_failures: Mapping[str, str]


class Part:
    """A component other than a loss under check; every :meth:`build` gives a new one.

    Args:
        component: a name of the registry, ``pml.<ClassName>``, ``"module:Class"``, a class, or a
            function that returns the component.
        kind: "miners", "samplers", "backbones", "datasets", "spaces" or "trackers".
        arguments: for the constructor, without those that the run supplies.

    Raises:
        UserError: if there is no such component, or the arguments do not fit.
    """

    @checked
    def __init__(
        self,
        component: str | Callable[..., Any],
        kind: Kind,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.registered = isinstance(component, str) and ":" not in component
        self.target: Any = find(component, kind) if isinstance(component, str) else component
        self.short = (
            component
            if isinstance(component, str)
            else getattr(component, "__name__", repr(component))
        )
        given = ", ".join(f"{key}={value}" for key, value in (arguments or {}).items())
        self.name = f"{self.short}({given})" if given else self.short
        self.arguments = {
            **declared_value(self.target, "check_arguments", self.short),
            **(arguments or {}),
        }
        found = (
            registry.problems(kind, self.short, self.arguments)
            if self.registered
            else check_arguments(self.short, self.target, self.arguments, RUNTIME[kind])
        )
        if found:
            raise UserError("\n".join(map(_message, found)))
        self.traits = PartTraits(
            bool(declared_value(self.target, "random", self.short)),
            declared_value(self.target, "expected_failures", self.short),
        )

    def build(self, weights: int = 0, **runtime: Any) -> Any:
        """Return a new component.

        Args:
            weights: the seed of its initial weights.
            runtime: arguments that a run supplies; those that the constructor has are given to it.

        Raises:
            UserError: if its constructor refuses the arguments, or raises anything.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(weights)
            if self.registered:
                return registry.assemble(self.kind, self.short, self.arguments, runtime)
            return construct(self.short, self.target, self.arguments, runtime)


def _message(problem: Misfit) -> str:
    missing = problem.message.startswith("missing argument")
    hint = f"; give it after the name, as {problem.argument}=..." if missing else ""
    return ": ".join(filter(None, problem)) + hint


def require(fault: str | None, when: str = "") -> None:
    """Raise CheckFailedError if there is a fault, such as ``"gave 3; a miner gives a tuple"``."""
    if fault:
        raise CheckFailedError(f"{when} it {fault}".strip(), "contract", f"it {fault}")


__all__ = ["Part", "PartTraits", "blaming", "require"]
