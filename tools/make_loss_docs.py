"""Write docs/losses.md, the page of all losses, from their classes.

    python tools/make_loss_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

import re

from _pages import ROOT, keep

from zoo import registry
from zoo._source import plain

PAGE = ROOT / "docs" / "losses.md"
OPENING = """# Losses

Made by `python tools/make_loss_docs.py` from the classes; do not edit. Kind: what a loss looks at.
Cost: of a step, in N images of a batch, d numbers of an embedding, C classes of the data set, K of
the batch. Sampler: what its paper's batches come from. How each is checked: `zoo check NAME`.

"""


def page() -> str:
    """Return the whole page."""
    names = registry.names("losses")
    rows = [row(name) for name in names]
    head = "| name | paper | kind | cost | classes | sampler |\n|---|---|---|---|---|---|\n"
    return OPENING + head + "".join(rows) + "".join(f"\n{section(name)}" for name in names)


def row(name: str) -> str:
    """Return the line of the table."""
    loss = registry.component("losses", name)
    needs = "yes" if "num_classes" in loss.arguments else ""
    cells = (loss.paper, *(loss.facts.get(fact, "") for fact in ("kind", "cost")), needs)
    return f"| [{name}](#{name}) | {' | '.join(cells)} | {loss.facts.get('sampler', '')} |\n"


def section(name: str) -> str:
    """Return the section of a loss: its arguments and its documentation."""
    loss = registry.describe("losses", name)
    text = registry.documentation(registry.load("losses", name))
    arguments = ", ".join(
        p.name if p.required else f"{p.name}={p.default!r}" for p in loss.parameters
    )
    return f"## {name}\n\n`{name}({arguments})`\n\n{markdown(text)}\n"


def markdown(text: str) -> str:
    """Return a docstring as Markdown: its parts titled, its arguments a list."""
    done, inside = [], False
    for line in fenced(plain(text)).splitlines():
        inside ^= line.startswith("```")
        done.append(line if inside else heading(line))
    return "\n".join(done)


def fenced(text: str) -> str:
    """Return a docstring with its literal blocks as fenced ones."""
    done, inside = [], ""
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if inside and line.strip() and not line.startswith(inside):
            while not done[-1].strip():
                done.pop()
            done += ["```", ""]
            inside = ""
        if done and not inside and line.strip() and waits(done) and len(indent) >= 4:
            inside = indent
            done.append("```text")
        done.append(line.removeprefix(inside))
    return "\n".join(done + (["```"] if inside else [])).replace("::\n", ":\n").rstrip()


def waits(done: list[str]) -> bool:
    """Tell whether the last line with something in it announces a literal block."""
    return next((line for line in reversed(done) if line.strip()), "").endswith("::")


def heading(line: str) -> str:
    """Return the title of a part in bold, and what is under it as it is or as items of a list."""
    if re.fullmatch(r"(Args|Shape|Reference|Attributes|Raises|Returns):", line):
        return f"**{line.removesuffix(':')}**\n"
    item = re.fullmatch(r"    (\w+): (.*)", line)
    if item:
        return f"- `{item[1]}`: {item[2]}"
    nested = re.fullmatch(r" {4,8}([*\d].*)", line)
    return (
        nested[1] if nested else re.sub(r"^ {4,12}", "  " if line.startswith(" " * 8) else "", line)
    )


def main() -> None:
    """Write the page, or say whether it is stale."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
