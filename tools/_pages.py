"""Functions shared by the tools that generate documents."""

from __future__ import annotations

import re
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


def fenced(text: str) -> str:
    """Return a docstring with fenced blocks instead of literal blocks."""
    done, inside = [], ""
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if inside and line.strip() and not line.startswith(inside):
            while not done[-1].strip():
                done.pop()
            done += ["```", ""]
            inside = ""
        if done and not inside and line.strip() and announces_block(done) and len(indent) >= 4:
            inside = indent
            done.append("```text")
        done.append(line.removeprefix(inside))
    text = "\n".join(done + (["```"] if inside else []))
    return re.sub(r"^::$\n", "", text, flags=re.M).replace("::\n", ":\n").rstrip()


def announces_block(done: list[str]) -> bool:
    """Return whether the last line that is not empty announces a literal block."""
    return next((line for line in reversed(done) if line.strip()), "").endswith("::")
