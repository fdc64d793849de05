"""Components that a run took from plugins: kept with its result, named where they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.config.schema import COMPONENTS, Config, dig
from zoo.errors import UserError
from zoo.registry import Kind, plugin_of
from zoo.support.text import printable

if TYPE_CHECKING:
    from zoo.runs.folder import RunFolder

_REGISTERED = "registered in "


def plugins_of(config: Config) -> dict[str, str]:
    """Return of which plugins the components of a config are, by kind, as results keep it."""
    data = config.model_dump()
    named: dict[Kind, Any] = {kind: dig(data, (*keys, "name")) for keys, kind in COMPONENTS.items()}
    found = {kind: plugin_of(kind, name) for kind, name in named.items() if name is not None}
    return {kind: plugin for kind, plugin in found.items() if plugin is not None}


def check_there(run: RunFolder, kind: Kind, name: str) -> None:
    """Refuse to go on without a component that the network or the images of a run are made by.

    Raises:
        UserError: nobody has it; the message says whom it was of, as far as that is known.
    """
    if not registry.is_there(kind, name):
        what = registry.noun_of(kind)
        raise UserError(
            printable(f"{run.path}: its {what} {name!r} is not here; {_what_to_do(run, kind)}")
        )


def _what_to_do(run: RunFolder, kind: Kind) -> str:
    plugin = run.result().get("plugins", {}).get(kind) if run.finished else None
    if plugin is None:
        return "install the package that has it, or import the module that registers it"
    if plugin.startswith(_REGISTERED):
        module = plugin.removeprefix(_REGISTERED)
        return f"it was registered in {module}: run that code first, or make it a package"
    return f"it is of {plugin}: install that package"
