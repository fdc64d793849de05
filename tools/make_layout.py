"""Write the picture of the packages into docs/design.md, from the table in tests/test_layout.py.

    python tools/make_layout.py [--check]

With --check nothing is written, and the exit status says whether the picture is stale.
"""

from __future__ import annotations

import ast
import re

from _pages import ROOT, keep

PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- layout -->\n", "<!-- end -->\n"
WIDTH = 78


def layers() -> dict[str, list[str]]:
    """Return the packages and what each may import, from the test."""
    for node in ast.parse((ROOT / "tests" / "test_layout.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            return {name: text.split() for name, text in ast.literal_eval(node.value).items()}
    raise SystemExit("tests/test_layout.py has no table LAYERS")


def storeys(table: dict[str, list[str]]) -> list[list[str]]:
    """Return the packages in rows, the top row first; each is just above what it imports."""
    heights: dict[str, int] = {}
    for name, others in table.items():
        heights[name] = max((1 + heights[other] for other in others), default=0)
    top = max(heights.values())
    return [[name for name in table if heights[name] == h] for h in range(top, -1, -1)]


def drawn(rows: list[list[str]]) -> str:
    """Return the rows as boxes of a diagram."""
    line = "─" * (WIDTH - 2)
    walls = []
    for names in rows:
        rooms, wide = len(names), (WIDTH - 1 - len(names)) // len(names)
        last = WIDTH - 1 - rooms - wide * (rooms - 1)
        cells = [name.center(last if name == names[-1] else wide) for name in names]
        walls.append(f"│{'│'.join(cells)}│")
    return f"┌{line}┐\n" + f"\n├{line}┤\n".join(walls) + f"\n└{line}┘"


def summary(name: str) -> str:
    """Return the first sentence of a package's docstring."""
    path = ROOT / "zoo" / name
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""
    return text.split("\n", 1)[0].rstrip(".;?").replace("``", "`").replace("->", "→")


def main() -> None:
    """Write the picture, or check that it is up to date."""
    table = layers()
    lines = [
        f"| `{name}` | {summary(name)} | {', '.join(others) or '–'} |"
        for name, others in reversed(table.items())
    ]
    head = "| package | what it is for | imports |\n|---|---|---|\n"
    made = f"```text\n{drawn(storeys(table))}\n```\n\n{head}" + "\n".join(lines)
    page = PAGE.read_text("utf-8")
    pattern = f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})"
    keep(PAGE, re.sub(pattern, lambda _: made + "\n", page, flags=re.S))


if __name__ == "__main__":
    main()
