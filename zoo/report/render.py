"""The templates of the pages of a report, and the static files that pages link to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoo.support import templates

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
STATIC = ("report.css", "theme.js", "report.js", "tsne.js")


def environment() -> Environment:
    """Return the templates of the pages."""
    return templates.environment(_HERE / "templates")


def assets() -> dict[str, bytes]:
    """Return the content of the static files by name."""
    from plotly.offline import get_plotlyjs

    found = {name: (_HERE / "static" / name).read_bytes() for name in STATIC}
    return found | {"plotly.min.js": get_plotlyjs().encode()}
