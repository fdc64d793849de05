"""Search among images: the public entrance to :mod:`zoo.search.index`."""

from __future__ import annotations

from zoo.search.index import Hit, Index, build, open

__all__ = ["Hit", "Index", "build", "open"]
