"""Write docs/losses.md, the page of all losses, from their classes.

    python tools/make_loss_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from _pages import ROOT, fenced, keep

from zoo import registry
from zoo.registry.source import plain

PAGE = ROOT / "docs" / "losses.md"
OPENING = """# Losses

Made by `python tools/make_loss_docs.py` from the classes; do not edit. Kind: what a loss compares.
Cost: of a step, with N images and K classes in a batch, d numbers in an embedding and C classes in
the data set. Sampler: the one that makes the paper's batches. `zoo check NAME` checks a loss. Each
loss has a config for characters and one for photographs in folders: `zoo run NAME_glyphs` and
`zoo run NAME_folder dataset.root=FOLDER`.

"""


def page() -> str:
    """Return the whole page."""
    names = registry.names("losses")
    rows = [row(name) for name in names]
    head = "| name | paper | kind | cost | classes | sampler |\n|---|---|---|---|---|---|\n"
    return (
        OPENING + head + "".join(rows) + "".join(f"\n{section('losses', name)}" for name in names)
    )


def row(name: str) -> str:
    """Return the row of a loss in the table."""
    loss = registry.component("losses", name)
    needs = "yes" if "num_classes" in loss.arguments else ""
    cells = (loss.paper, *(loss.facts.get(fact, "") for fact in ("kind", "cost")), needs)
    return f"| [{name}](#{name}) | {' | '.join(cells)} | {loss.facts.get('sampler', '')} |\n"


def section(kind: registry.Kind, name: str, given: Collection[str] = ()) -> str:
    """Return the section of a component, without arguments that are given by the run."""
    component = registry.describe(kind, name)
    text = registry.documentation(registry.load(kind, name))
    arguments = ", ".join(
        p.name if p.required else f"{p.name}={p.default!r}"
        for p in component.parameters
        if p.name not in given
    )
    text = markdown(text)
    for one in given:
        text = re.sub(rf"- `{one}`: .*\n(  .*\n)*", "", text)
    return f"## {name}\n\n`{name}({arguments})`\n\n{text}\n"


def markdown(text: str) -> str:
    """Return a docstring as Markdown, with titles and with arguments as a list."""
    done, inside = [], False
    for line in fenced(plain(text)).splitlines():
        inside ^= line.startswith("```")
        done.append(line if inside else heading(line))
    return "\n".join(done)


def heading(line: str) -> str:
    """Return a line of a docstring: a title in bold, an argument as an item of a list."""
    if re.fullmatch(r"(Args|Shape|Reference|Attributes|Raises|Returns):", line):
        return f"**{line.removesuffix(':')}**\n"
    item = re.fullmatch(r"    (\w+): (.*)", line)
    if item:
        return f"- `{item[1]}`: {item[2]}"
    nested = re.fullmatch(r" {4,8}((?:\*|\d+\.) .*)", line)
    return (
        nested[1] if nested else re.sub(r"^ {4,12}", "  " if line.startswith(" " * 8) else "", line)
    )


def main() -> None:
    """Write the page, or check that it is up to date."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
