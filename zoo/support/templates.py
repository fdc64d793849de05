"""Pages from templates: every text is escaped, by whomever it was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import __version__
from zoo.support.text import harmless

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(folder: Path) -> Environment:
    """Return the templates in a folder, with which to render pages."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}  # JavaScript reads no NaN
    found.globals["version"] = __version__
    found.filters["breakable"] = _breakable
    return found


def _breakable(value: str, after: str = "_") -> str:
    """Return a text, escaped, in which a line may end after some characters."""
    import markupsafe

    name = markupsafe.escape(_visible(value))
    for character in after:
        name = name.replace(character, character + markupsafe.Markup("<wbr>"))
    return name


def _visible(value: Any) -> Any:
    """Return a text without characters that cannot be seen or turn the direction of others."""
    return harmless(value) if type(value) is str else value  # Markup was made by a template
