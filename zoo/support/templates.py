"""Pages from templates; every text is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import __version__
from zoo.support.text import harmless

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(folder: Path) -> Environment:
    """Return a Jinja environment that renders the templates in a folder."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}  # JavaScript cannot read NaN
    found.globals["version"] = __version__
    found.filters["breakable"] = _breakable
    return found


def _breakable(value: str, after: str = "_") -> str:
    """Return a text, escaped, in which lines may break after certain characters."""
    import markupsafe

    name = markupsafe.escape(_visible(value))
    for character in after:
        name = name.replace(character, character + markupsafe.Markup("<wbr>"))
    return name


def _visible(value: Any) -> Any:
    """Return a text without characters that are invisible or change the writing direction."""
    return harmless(value) if type(value) is str else value  # Markup comes from a template
