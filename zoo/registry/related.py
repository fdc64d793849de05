"""Which components belong together: of one paper, or named by one another."""

from __future__ import annotations

from typing import NamedTuple

from zoo.registry import components
from zoo.registry.components import Component, Kind


class Related(NamedTuple):
    """A component that is related to another one of the kind ``of``."""

    kind: Kind
    name: str
    of: Kind

    def __str__(self) -> str:
        other = "" if self.kind == self.of else f" ({components.noun_of(self.kind)})"
        return self.name + other


def related(component: Component) -> list[Related]:
    """Return the components of the same paper, then those that one of the two names.

    A class names others in its attribute ``related``, text such as ``"nca, ntxent"``; those that
    are not there are left out. Nothing is imported.
    """
    others = [
        components.component(kind, name)
        for kind in components.KINDS
        for name in components.names(kind)
        if (kind, name) != (component.kind, component.name)
    ]
    same = [one for one in others if component.paper and one.paper == component.paper]
    named = [one for one in others if one.name in _named(component)]
    naming = [one for one in others if component.name in _named(one)]
    found = {(one.kind, one.name): None for one in (*same, *named, *naming)}
    return [Related(*place, component.kind) for place in found]


def _named(component: Component) -> list[str]:
    return [name.strip() for name in component.facts.get("related", "").split(",")]
