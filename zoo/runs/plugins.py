"""The plugins of a run: recorded in its result, named in a message if they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zoo import registry
from zoo.config.schema import COMPONENTS, Config, components_in, dig
from zoo.errors import UserError
from zoo.registry import Kind, plugin_of
from zoo.support.text import printable

if TYPE_CHECKING:
    from zoo.runs.folder import RunFolder

_REGISTERED = "registered in "


def plugins_of(config: Config) -> dict[str, str]:
    """Return the plugins that the result of a config depends on, by kind: not its trackers."""
    parts = set(COMPONENTS.values())
    return {kind: plugin for kind, plugin in all_plugins(config) if kind in parts}


def all_plugins(config: Config) -> Iterator[tuple[Kind, str]]:
    """Yield the kind and the plugin of every component of a config that comes from one."""
    data = config.model_dump()
    for keys, kind in components_in(data).items():
        name = dig(data, (*keys, "name"))
        plugin = None if name is None else plugin_of(kind, name)
        if plugin is not None:
            yield kind, plugin


def check_there(run: RunFolder, kind: Kind, name: str) -> None:
    """Raise a UserError that says how to get a component that a run needs, unless it is there."""
    if not registry.is_there(kind, name):
        what = registry.noun_of(kind)
        raise UserError(
            printable(f"{run.path}: its {what} {name!r} is not available; {_what_to_do(run, kind)}")
        )


def _what_to_do(run: RunFolder, kind: Kind) -> str:
    plugin = run.result().get("plugins", {}).get(kind) if run.finished else None
    if plugin is None:
        return "install its package, or import the module that registers it"
    if plugin.startswith(_REGISTERED):
        module = plugin.removeprefix(_REGISTERED)
        return f"it was registered in {module}: run that code first, or make it a package"
    return f"it comes from {plugin}: install that package"
