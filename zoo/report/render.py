"""Pages from templates: every text is escaped, by whomever it was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
STATIC = ("report.css", "theme.js", "report.js", "tsne.js")


def environment() -> Environment:
    """Return the templates, with which to render pages."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
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


def assets() -> dict[str, bytes]:
    """Return what pages refer to, by name."""
    from plotly.offline import get_plotlyjs

    found = {name: (_HERE / "static" / name).read_bytes() for name in STATIC}
    return found | {"plotly.min.js": get_plotlyjs().encode()}


def _breakable(value: str) -> str:
    """Return a name, escaped, in which a line may end after an underscore."""
    import markupsafe

    name = markupsafe.escape(_visible(value))
    return name.replace("_", markupsafe.Markup("_<wbr>"))


def _visible(value: Any) -> Any:
    """Return a text without characters that cannot be seen or turn the direction of others."""
    if type(value) is not str or value.isprintable():  # Markup was made by a template
        return value
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in value
    )
