"""Write docs/losses.md, the page of all losses, from their classes.

    python tools/make_loss_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from _pages import ROOT, fenced, keep

from zoo import registry
from zoo.registry import hooks
from zoo.registry.source import plain

PAGE = ROOT / "docs" / "losses.md"
_ITEM = re.compile(r" {0,8}(?:\*|\d+\.) ")
OPENING = """# Losses

Made by `python tools/make_loss_docs.py` from the classes; do not edit. Kind: what a loss compares.
Cost: of a step, with N images and K classes in a batch, d numbers in an embedding and C classes in
the data set. Classes: whether the loss is built for the number of classes, and its labels are from
0 to C - 1. Sampler: the one that makes the paper's batches. "Asks for", in the section of a loss:
what a run gives it besides embeddings and labels.

`zoo check NAME` checks a loss. Not all checks apply to all losses: `check_gallery`, for example,
does not apply where a gallery has no meaning. So the numbers of checks in `zoo list losses` differ.
Each loss has a config for characters and one for photographs in folders: `zoo run NAME_glyphs` and
`zoo run NAME_folder dataset.root=FOLDER`.

"""
# Sections of docs/hooks.md
_PLACES = {
    "image_ids": "which-images-are-in-the-batch",
    "level_sizes": "parts-of-an-embedding",
    "space": "another-space",
    "begin_epoch": "a-look-at-the-data-between-epochs",
}


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
    asked = f"{asks_for(component)}\n\n" if kind == "losses" and asks_for(component) else ""
    return f"## {name}\n\n`{name}({arguments})`\n\n{asked}{text}\n"


def asks_for(loss: registry.Component) -> str:
    """Return a sentence of what a loss is given besides embeddings and labels; may be empty."""
    target = registry.load("losses", loss.name)
    asked = hooks.asked(target, [parameter.name for parameter in loss.parameters])
    words = {name: hooks.ASKED[name] for name in asked}
    for name in words.keys() & _PLACES.keys():
        words[name] = f"[{words[name]}](hooks.md#{_PLACES[name]})"
    if "space" in words and (spaces := " or ".join(getattr(target, "spaces", ()))):
        words["space"] += f" ({spaces})"
    return f"Asks for: {'; '.join(words.values())}." if words else ""


def markdown(text: str) -> str:
    """Return a docstring as Markdown, with titles and with arguments as a list."""
    done: list[str] = []
    inside = False
    for line in fenced(plain(text)).splitlines():
        inside ^= line.startswith("```")
        if not inside and done and done[-1].endswith(":") and _ITEM.match(line):
            done.append("")  # without it, not every reader of Markdown sees a list
        done.append(line if inside else heading(line))
    return "\n".join(done)


def heading(line: str) -> str:
    """Return a line of a docstring: a title in bold, an argument as an item of a list."""
    if re.fullmatch(r"(Args|Shape|Reference|Attributes|Raises|Returns):", line):
        return f"**{line.removesuffix(':')}**\n"
    item = re.fullmatch(r"    (\w+): (.*)", line)
    if item:
        return f"- `{item[1]}`: {item[2]}"
    if _ITEM.match(line) and line.startswith("    "):
        return line.lstrip()
    words = line.lstrip()
    indent = len(line) - len(words)
    if indent < 4:
        return line
    # Of an item at 4 spaces, "* " or "1. ", the next lines are indented by 6 or 7.
    return " " * ({6: 2, 7: 3}.get(indent, 2 if indent >= 8 else 0)) + words


def main() -> None:
    """Write the page, or check that it is up to date."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
