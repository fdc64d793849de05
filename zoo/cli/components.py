"""``zoo list`` and ``zoo show``: names of components, and everything known of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from textwrap import shorten
from typing import Any

import rich_click as click
from click.exceptions import Exit
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markup import escape, render
from rich.padding import Padding
from rich.table import Table

from zoo import registry
from zoo.errors import UserError, did_you_mean, one_of
from zoo.progress import stdout
from zoo.registry.arguments import REQUIRED
from zoo.support.text import harmless

_LEAST_ROOM = 24  # characters of a column of sentences
_LOSS_COLUMNS = {  # by importance, those that do not fit are left out; with an explanation
    "name": "",
    "paper": "",
    "kind": "",
    "checks": "how many pass; cannot: ruled out by the formula, see zoo check NAME",
    "classes": "needed if it has weights for each class of the training data",
    "sampler": "",
    "cost": "time; N images and K classes of a batch, d of an embedding, C classes of the data",
    "from": "",
}


@click.command("list")
@click.argument(
    "kind",
    required=False,
    help="losses, miners, samplers, backbones, datasets or spaces; all by default.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also every class of pytorch-metric-learning.",
)
def list_(kind: str | None, everything: bool) -> None:
    """List components of all kinds, or of one, including those of plugins."""
    console = stdout()
    kinds = registry.KINDS if kind is None else (kind_of(kind),)
    for one in kinds:
        names = registry.names(one)
        others = registry.pml_names(one)
        found = [registry.component(one, name) for name in names]
        if found:
            table = _losses if kind == "losses" else _components
            console.print(table(one, found, console.width))
        if others and everything:
            theirs = [registry.component(one, name) for name in others]
            title = f"{one} of pytorch-metric-learning"
            console.print("", _components(title, theirs, console.width))
        elif others:
            console.print(
                f"[dim]and {len(others)} of pytorch-metric-learning as pml.<ClassName>; "
                f"zoo list {one} --all shows them[/]"
            )
        console.print()


@click.command()
@click.argument("kind", help="losses, miners, samplers, backbones, datasets or spaces.")
@click.argument("name", required=False, help="A name that `zoo list` shows, or pml.<ClassName>.")
def show(kind: str, name: str | None) -> None:
    """Show the arguments, paper and documentation of one component."""
    from zoo.registry.source import filled, unmarked

    console = stdout()
    if name is None:
        raise UserError(_without_name(kind))
    found = registry.describe(kind_of(kind), name)
    console.print(f"[bold]{escape(name)}[/]  {escape(unmarked(found.summary))}")
    facts = {"paper": found.paper, "from": found.distribution, "class": found.target}
    table = Table.grid(padding=(0, 2, 0, 0))
    for fact, text in facts.items():
        if text:
            table.add_row(fact, escape(text))
    console.print(table)
    if found.broken:
        console.print(f"[red]broken {escape(found.broken)}[/]")
        raise Exit(1)
    target = registry.load(kind_of(kind), name)
    if hasattr(target, "variants") and name.endswith(".*"):
        console.print("\n" + escape(", ".join(name[:-1] + v for v in target.variants())))
    if found.parameters:
        console.print(_parameters(found))
    text = registry.documentation(target) or "This class has no documentation."
    shown = r"\s+".join(map(re.escape, found.summary.split()))
    if rest := re.sub(rf"\A{shown}\s*", "", text):
        console.print("\n" + filled(rest, console.width), markup=False, soft_wrap=True)


def kind_of(name: str) -> registry.Kind:
    """Return a kind of component; raise a UserError if there is no such kind."""
    registry.names(name)  # type: ignore[arg-type] # raises if there is no such kind
    return name  # type: ignore[return-value]


def _without_name(kind: str) -> str:
    """Return the error for `zoo show` with one word: a kind or, more likely, a name."""
    if kind in registry.KINDS:
        return f"add a name; `zoo list {kind}` shows them"
    kinds = registry.kinds_of(kind)
    if not kinds:
        known = [name for one in registry.KINDS for name in registry.names(one)]
        hint = did_you_mean(kind, [*registry.KINDS, *known]) or "; `zoo list` shows what there is"
        return f"there is nothing named {kind!r}{hint}"
    return "say which kind: " + one_of([f"zoo show {found} {kind}" for found in kinds])


def table_of(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without its empty columns; a column of single words is not wrapped."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        whole = not any(" " in row[i] for row in rows)
        table.add_column(heads[i], overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table


def _components(title: str, found: list[registry.Component], width: int) -> RenderableType:
    """Return the table of components; in a narrow terminal, each name has its text below it."""
    rows = [(*_listing(one), _origin(one)) for one in found]
    names, _, origins = zip(*rows, strict=True)
    if width - _width(names) - _width(origins) >= _LEAST_ROOM:
        return table_of(title, ("name", "what it is", "from"), rows)
    below = [(name, Padding("\n".join(filter(None, more)), (0, 0, 0, 2))) for name, *more in rows]
    return Group(f"[bold]{title}[/]", *(part for pair in below for part in pair))


def _listing(component: registry.Component) -> tuple[str, str]:
    """Return a name and what it is."""
    from zoo.registry.source import unmarked

    name = escape(component.name)
    if component.broken:
        return f"[red]{name}[/]", _broken(component)
    paper = f" [dim]({escape(component.paper)})[/]" if component.paper else ""
    return f"[cyan]{name}[/]", escape(unmarked(component.summary)) + paper


def _broken(component: registry.Component) -> str:
    return f"[red]broken: {escape(component.broken or '')}[/]"


def _losses(title: str, found: list[registry.Component], width: int) -> Group:
    """Return the table of losses, one line each, and below it those that are broken."""
    from zoo.cli import record

    recorded = record.read()
    rows = [_loss(loss, recorded) for loss in found if not loss.broken]
    heads = [head for head in _LOSS_COLUMNS if any(row[head] for row in rows)]
    ends = accumulate(_width([head, *(row[head] for row in rows)]) for head in heads)
    fit = sum(end - 2 <= width for end in ends)
    shown, dropped = heads[:fit], heads[fit:]
    table = table_of(title, shown, [[row[head] for head in shown] for row in rows])
    lines = [f"{head}: {text}" for head in shown if (text := _LOSS_COLUMNS[head])]
    if dropped:
        need = "needs" if len(dropped) == 1 else "need"
        lines.append(f"{one_of(dropped, 'and')} {need} a wider terminal")
    broken = [(escape(one.name), _broken(one), _origin(one)) for one in found if one.broken]
    others = table_of("", ("broken", "reason", "from"), broken)
    return Group(table, *(f"[dim]{line}[/]" for line in lines), *([others] if broken else []))


def _loss(loss: registry.Component, recorded: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a loss: what it looks at, needs and costs, and the checks it passes."""
    from zoo.cli import record

    year = re.match(r".*? \d{4}", loss.paper)
    own = loss.distribution == "metric-zoo"
    cells = {fact: escape(loss.facts.get(fact, "")) for fact in ("kind", "cost", "sampler")}
    return cells | {
        "name": f"[cyan]{escape(loss.name)}[/]",
        "paper": escape(shorten(year[0] if year else loss.paper, 40, placeholder=" …")),
        "classes": "needed" if "num_classes" in loss.arguments else "",
        "checks": record.in_short(recorded.get(loss.name) if own else None),
        "from": _origin(loss),
    }


def _width(cells: Sequence[str]) -> int:
    """Return the width of a column and the gap after it; 0 if it is empty."""
    widest = max(cell_len(harmless(render(cell).plain)) for cell in cells)
    return widest + 2 if widest else 0


def _origin(component: registry.Component) -> str:
    """Return the package that a component is from, unless its name shows it."""
    known = ("metric-zoo", "pytorch-metric-learning")
    return "" if component.distribution in known else escape(component.distribution)


def _parameters(component: registry.Component) -> Table:
    """Return the table of arguments; those that the run supplies are marked."""
    from zoo.base import RUNTIME

    rows = []
    for name, default, annotation in component.parameters:
        if name in RUNTIME[component.kind]:
            rows.append((name, "given by the run", ""))
        else:
            shown = "required" if default is REQUIRED else escape(repr(default))
            rows.append((name, shown, escape(_type_name(annotation))))
    return table_of("", ("argument", "default", "type"), rows)


def _type_name(annotation: Any) -> str:
    import inspect

    if annotation is inspect.Parameter.empty:
        return ""
    return inspect.formatannotation(annotation).replace("typing.", "")
