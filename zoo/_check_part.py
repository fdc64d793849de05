"""A miner, sampler, backbone or data set under check: how it is built, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from zoo import registry
from zoo._arguments import Problem
from zoo._arguments import check as check_arguments
from zoo._check_subject import CheckFailedError, blaming, construct, find, said
from zoo._checked import checked
from zoo.base import RUNTIME
from zoo.errors import UserError
from zoo.registry import Kind


class Traits(NamedTuple):
    """What a component says of itself.

    Attributes:
        random: whether two calls may give two results.
        expected_failures: names of checks that it cannot pass by its definition, and why.
    """

    random: bool
    expected_failures: Mapping[str, str]


class Part:
    """A component other than a loss under check; every :meth:`build` gives a new one.

    Args:
        component: a name of the registry, ``pml.<ClassName>``, ``"module:Class"``, a class, or a
            function that returns the component.
        kind: "miners", "samplers", "backbones" or "datasets".
        arguments: for the constructor; others than those that the run supplies.

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
        self.arguments = {**said(self.target, "check_arguments", self.short), **(arguments or {})}
        found = (
            registry.problems(kind, self.short, self.arguments)
            if self.registered
            else check_arguments(self.short, self.target, self.arguments, RUNTIME[kind])
        )
        if found:
            raise UserError("\n".join(map(_told, found)))
        self.traits = Traits(
            bool(said(self.target, "random", self.short)),
            said(self.target, "expected_failures", self.short),
        )

    def build(self, weights: int = 0, **runtime: Any) -> Any:
        """Return a new component, given those of what a run has for it that it declares.

        Args:
            weights: the seed that decides the weights that it starts from.
            runtime: what a run has for it.

        Raises:
            UserError: its constructor refuses the arguments, or raises anything.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(weights)
            if self.registered:
                return registry.assemble(self.kind, self.short, self.arguments, runtime)
            return construct(self.short, self.target, self.arguments, runtime)


def _told(problem: Problem) -> str:
    missing = problem.message.startswith("missing argument")
    how = f"; give it behind the name, as {problem.argument}=..." if missing else ""
    return ": ".join(filter(None, problem)) + how


def require(fault: str | None, when: str = "") -> None:
    """Fail if there is something to say of a component: ``"gave 3; a miner gives a tuple"``.

    Raises:
        CheckFailedError: with the component's fault, and when it showed.
    """
    if fault:
        raise CheckFailedError(f"{when} it {fault}".strip(), "contract", f"it {fault}")


__all__ = ["Part", "Traits", "blaming", "require"]
