"""Find the engine that the user names, with the resources that the user's file gives it."""

from __future__ import annotations

import importlib

from zoo.errors import FAILURES, UserError, blaming, did_you_mean, one_of, words_of
from zoo.plans.engines.base import Engine
from zoo.plans.engines.resources import read, resources_file
from zoo.registry.arguments import check
from zoo.registry.components import installed_entry_points
from zoo.support.values import must_be

GROUP = "zoo.engines"
_OWN = {
    "local": "zoo.plans.engines.local:Local",
    "slurm": "zoo.plans.engines.slurm:Slurm",
    "ray": "zoo.plans.engines.ray:Ray",
}
_ON = "on"


def engine(name: str | None = None, jobs: int | None = None) -> Engine:
    """Return an engine.

    Args:
        name: local, slurm, ray, or that of an entry point of the group ``zoo.engines``; by default
            the one that the user's file names, else local.
        jobs: runs at a time, instead of what the file says.

    Raises:
        UserError: there is no such engine, or the file has mistakes.
    """
    path = resources_file()
    settings = read(path)
    known = names()
    if name is None:
        name = settings.get(_ON) or "local"
        if not isinstance(name, str) or name not in known:
            raise UserError(f"{path}: {_ON}: {_unknown(name, known)}")
    elif name not in known:
        raise UserError(f"--on {_unknown(name, known)}")
    for key in settings:
        if key != _ON and key not in known:
            raise UserError(f"{path}: {_unknown(key, known)}")
    given = settings.get(name) or {}
    if not isinstance(given, dict):
        raise UserError(f"{path}: {name}: {must_be('a map of settings', given)}")
    target = _load(name, known[name])
    found = [f"{path}: {name}.{one.argument}: {one.message}" for one in check(name, target, given)]
    if found:
        raise UserError("\n".join(found))
    try:
        with blaming(f"engine {name}"):
            return target(**{**given, **({} if jobs is None else {"jobs": jobs})})
    except UserError as error:
        raise UserError(f"{path}: {name}: {error}") from None


def names() -> dict[str, str]:
    """Return the engines there are, ours and those of entry points, each with its class."""
    return {e.name: e.value for e in installed_entry_points().select(group=GROUP)} | _OWN


def _load(name: str, target: str) -> type[Engine]:
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except FAILURES as error:
        words = f"{type(error).__name__}: {words_of(error)}"
        raise UserError(f"engine {name}: {target} cannot be loaded: {words}") from None
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise UserError(f"engine {name}: {target} is not a subclass of {Engine.__module__}.Engine")
    return found


def _unknown(name: object, known: dict[str, str]) -> str:
    hint = did_you_mean(str(name), list(known))
    return f"{name}: there is no such engine; give {one_of(sorted(known))}{hint}"
