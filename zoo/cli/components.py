"""``zoo list`` and ``zoo show``: which components there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import rich_click as click
from click.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from zoo import registry
from zoo.errors import UserError, did_you_mean, one_of
from zoo.progress import stdout
from zoo.registry.arguments import REQUIRED


@click.command("list")
@click.argument(
    "kind",
    required=False,
    help="losses, miners, samplers, backbones or datasets; all by default.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also every class of pytorch-metric-learning.",
)
def list_(kind: str | None, everything: bool) -> None:
    """List what there is by name, plugins and broken plugins among it."""
    console = stdout()
    kinds = registry.KINDS if kind is None else (kind_of(kind),)
    for one in kinds:
        names = registry.names(one)
        others = registry.pml_names(one)
        found = [registry.component(one, name) for name in names]
        if found:
            console.print(_losses(found) if kind == "losses" else _components(one, found))
        if others and everything:
            theirs = [registry.component(one, name) for name in others]
            console.print("", _components(f"{one} of pytorch-metric-learning", theirs))
        elif others:
            console.print(
                f"[dim]and {len(others)} of pytorch-metric-learning as pml.<ClassName>; "
                f"zoo list {one} --all shows them[/]"
            )
        console.print()


@click.command()
@click.argument("kind", help="losses, miners, samplers, backbones or datasets.")
@click.argument("name", required=False, help="A name that `zoo list` shows, or pml.<ClassName>.")
def show(kind: str, name: str | None) -> None:
    """Show all that is known of one component: its arguments, paper and documentation."""
    from zoo.registry.source import plain

    console = stdout()
    if name is None:
        raise UserError(_without_name(kind))
    found = registry.describe(kind_of(kind), name)
    console.print(f"[bold]{escape(name)}[/]  {escape(plain(found.summary))}")
    facts = {"paper": found.paper, "from": found.distribution, "class": found.target}
    for fact, text in facts.items():
        if text:
            console.print(f"{fact:<6} {escape(text)}")
    if found.broken:
        console.print(f"[red]broken {escape(found.broken)}[/]")
        raise Exit(1)
    target = registry.load(kind_of(kind), name)
    if hasattr(target, "variants") and name.endswith(".*"):
        console.print("\n" + escape(", ".join(name[:-1] + v for v in target.variants())))
    if found.parameters:
        console.print(_parameters(found))
    text = plain(registry.documentation(target)).replace("::\n", ":\n")
    console.print("\n" + escape(text or "Its class says nothing of itself."))


def kind_of(name: str) -> registry.Kind:
    """Return a kind of component; raise a UserError if there is no such kind."""
    registry.names(name)  # type: ignore[arg-type] # raises if there is no such kind
    return name  # type: ignore[return-value]


def _without_name(kind: str) -> str:
    """Return what to say where `zoo show` was given one word: a kind or, more likely, a name."""
    if kind in registry.KINDS:
        return f"name one of them too; `zoo list {kind}` shows what there is"
    kinds = registry.kinds_of(kind)
    if not kinds:
        known = [name for one in registry.KINDS for name in registry.names(one)]
        return f"there is nothing named {kind!r}" + did_you_mean(kind, [*registry.KINDS, *known])
    return "say of which kind: " + one_of([f"zoo show {found} {kind}" for found in kinds])


def table_of(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without its empty columns; where one has single words, they stay whole."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        whole = not any(" " in row[i] for row in rows)
        table.add_column(heads[i], overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table


def _components(title: str, found: list[registry.Component]) -> Table:
    return table_of(title, ("name", "what it is", "from"), [_listing(one) for one in found])


def _listing(component: registry.Component) -> tuple[str, str, str]:
    from zoo.registry.source import plain

    name, summary = escape(component.name), escape(plain(component.summary))
    if component.broken:
        return f"[red]{name}[/]", f"[red]broken: {escape(component.broken)}[/]", _origin(component)
    paper = f" [dim]({escape(component.paper)})[/]" if component.paper else ""
    return f"[cyan]{name}[/]", summary + paper, _origin(component)


def _losses(found: list[registry.Component]) -> Table:
    """Return the table of losses: what each looks at, needs and costs, and what checks gave."""
    from zoo.cli import record

    recorded = record.read()
    heads = ("name", "paper", "kind", "cost", "classes", "sampler", "checks", "from")
    rows = []
    for loss in found:
        name = escape(loss.name)
        if loss.broken:
            reason = f"[red]broken: {escape(loss.broken)}[/]"
            rows.append((f"[red]{name}[/]", reason, "", "", "", "", "", _origin(loss)))
            continue
        paper = re.match(r".*? \d{4}", loss.paper)
        needs = "needed" if "num_classes" in loss.arguments else ""
        own = loss.distribution == "metric-zoo"
        checked = record.in_short(recorded.get(loss.name) if own else None)
        kind, cost, sampler = (escape(loss.facts.get(f, "")) for f in ("kind", "cost", "sampler"))
        shown, origin = escape(paper[0] if paper else loss.paper), _origin(loss)
        rows.append((f"[cyan]{name}[/]", shown, kind, cost, needs, sampler, checked, origin))
    table = table_of("losses", heads, rows)
    table.caption = (
        "cost: time; N images of a batch, d of an embedding, C classes, K of the batch\n"
        "classes: whether it has weights for each class of the training data\n"
        "checks: how many pass; cannot: those that its formula rules out, see zoo check NAME"
    )
    table.caption_justify = "left"
    return table


def _origin(component: registry.Component) -> str:
    """Return where a component is from, if that is not plain from its name."""
    known = ("metric-zoo", "pytorch-metric-learning")
    return "" if component.distribution in known else escape(component.distribution)


def _parameters(component: registry.Component) -> Table:
    """Return the table of arguments; those that the run supplies are not for the user to give."""
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
