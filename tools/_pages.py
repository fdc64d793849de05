"""What the tools that make documents have in common."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def keep(page: Path, text: str) -> None:
    """Write a page; with ``--check`` write nothing, and end with status 1 if it is stale."""
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text("utf-8") != text:
        tool = Path(sys.argv[0]).name
        sys.exit(f"{page.relative_to(ROOT)} is stale: run python tools/{tool}")
