"""Docstrings for the site: roles and double backticks become plain, literal blocks fenced."""

from __future__ import annotations

from typing import Any

import griffe
from _pages import fenced

from zoo.registry.source import plain


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring before its arguments are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(plain(obj.docstring.value))
