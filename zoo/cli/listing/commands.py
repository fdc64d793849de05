"""``zoo list`` and ``zoo show``: names of components, and everything known of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import rich_click as click
from click.exceptions import Exit
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from zoo import registry
from zoo.cli.listing import losses
from zoo.cli.listing.tables import broken, origin, table_of, width
from zoo.errors import UserError, did_you_mean, one_of
from zoo.progress import stdout
from zoo.registry.arguments import REQUIRED

_LEAST_ROOM = 24  # characters of a column of sentences


@click.command("list")
@click.argument(
    "kind",
    required=False,
    help="losses, miners, samplers, backbones, datasets, spaces or trackers; all by default.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also every class of pytorch-metric-learning.",
)
@click.option(
    "--kind",
    "looks_at",
    multiple=True,
    metavar="KIND",
    help="Only losses of this kind: pair, triplet, list, proxy, classifier or clustering.",
)
@click.option("--since", type=click.IntRange(min=0), metavar="YEAR", help="Only of this year on.")
def list_(kind: str | None, everything: bool, looks_at: Sequence[str], since: int | None) -> None:
    """List components of all kinds, or of one, including those of plugins.

    Example: [cyan]zoo list losses --kind proxy --since 2019[/]
    """
    console = stdout()
    if looks_at and kind != "losses":
        raise UserError("--kind is a choice of losses: zoo list losses --kind " + looks_at[0])
    kinds = registry.KINDS if kind is None else (kind_of(kind),)
    for one in kinds:
        names = registry.names(one)
        others = registry.pml_names(one)
        found = [registry.component(one, name) for name in names]
        found = losses.chosen(found, looks_at, since)
        if found and kind == "losses":
            console.print(losses.table(found, console.width))
        elif found:
            console.print(_components(one, found, console.width))
        elif looks_at or since is not None:
            console.print(f"[dim]there are no such {one}[/]")
        if looks_at or since is not None:
            pass  # what PML has says neither
        elif others and everything:
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
@click.argument("kind", help="losses, miners, samplers, backbones, datasets, spaces or trackers.")
@click.argument("name", required=False, help="A name that `zoo list` shows, or pml.<ClassName>.")
def show(kind: str, name: str | None) -> None:
    """Show the arguments, paper and documentation of one component."""
    from zoo.registry import hooks
    from zoo.registry.related import related
    from zoo.registry.source import filled, unmarked

    console = stdout()
    if name is None:
        raise UserError(_without_name(kind))
    found = registry.describe(kind_of(kind), name)
    console.print(f"[bold]{escape(name)}[/]  {escape(unmarked(found.summary))}")
    facts = {
        "paper": found.paper,
        **{fact: found.facts.get(fact, "") for fact in ("kind", "cost", "sampler")},
        "related": ", ".join(map(str, related(found))),
        "from": found.distribution,
        "class": found.target,
    }
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
    if found.kind == "losses":
        asked = hooks.asked(target, [p.name for p in found.parameters])
        if asked:
            words = "; ".join(hooks.ASKED[name] for name in asked)
            console.print(f"asks for {words} (docs/hooks.md)")
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


def _components(title: str, found: list[registry.Component], room: int) -> RenderableType:
    """Return the table of components; in a narrow terminal, each name has its text below it."""
    rows = [(*_listing(one), origin(one)) for one in found]
    names, _, origins = zip(*rows, strict=True)
    if room - width(names) - width(origins) >= _LEAST_ROOM:
        return table_of(title, ("name", "what it is", "from"), rows)
    below = [(name, Padding("\n".join(filter(None, more)), (0, 0, 0, 2))) for name, *more in rows]
    return Group(f"[bold]{title}[/]", *(part for pair in below for part in pair))


def _listing(component: registry.Component) -> tuple[str, str]:
    """Return a name and what it is."""
    from zoo.registry.source import unmarked

    name = escape(component.name)
    if component.broken:
        return f"[red]{name}[/]", broken(component)
    paper = f" [dim]({escape(component.paper)})[/]" if component.paper else ""
    return f"[cyan]{name}[/]", escape(unmarked(component.summary)) + paper


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
