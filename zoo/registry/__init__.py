"""From names to components: losses, miners, samplers, backbones, data sets, spaces, trackers.

- ``components``: the registry itself: tables, plugins, families, ``pml.<ClassName>``
- ``related``: components that belong together
- ``source``, ``pml``: facts read from a class's source without importing it
- ``arguments``, ``nested``: which arguments a class takes; arguments that are components
- ``contracts``: what a component returns, compared with what :mod:`zoo.base` requires
- ``hooks``: what a loss may also ask for or do: images, epochs, learning rates of its own
- ``calling``, ``rehearsal``: calling a loss and a miner; trying them once before training
"""

from __future__ import annotations

from zoo.registry.components import (
    KINDS,
    Component,
    Kind,
    assemble,
    build,
    component,
    describe,
    documentation,
    full_name,
    is_there,
    kinds_of,
    load,
    names,
    noun_of,
    parameters,
    plugin_of,
    pml_names,
    problems,
    register,
    rewrite_nested,
    supplied,
)

__all__ = [
    "KINDS",
    "Component",
    "Kind",
    "assemble",
    "build",
    "component",
    "describe",
    "documentation",
    "full_name",
    "is_there",
    "kinds_of",
    "load",
    "names",
    "noun_of",
    "parameters",
    "plugin_of",
    "pml_names",
    "problems",
    "register",
    "rewrite_nested",
    "supplied",
]
