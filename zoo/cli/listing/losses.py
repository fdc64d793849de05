"""The table of losses: those that look at the same things together, the oldest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from textwrap import shorten
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from zoo import registry
from zoo.cli import record
from zoo.cli.listing.tables import broken, origin, table_of, width
from zoo.errors import UserError, did_you_mean, one_of

KINDS = {
    "pair": "pairs of images",
    "triplet": "triplets",
    "list": "all images of a batch at once",
    "proxy": "proxies of the classes",
    "classifier": "a classifier of the classes",
    "clustering": "clusterings",
    "": "of packages that do not say what they look at",
}
"""What losses look at, in the order of the table, and how it is headed."""

_COLUMNS = {  # by importance, those that do not fit are left out; with an explanation
    "name": "",
    "paper": "",
    "checks": "how many pass; cannot: ruled out by the formula, see zoo check NAME",
    "classes": "needed if it has weights for each class of the training data",
    "sampler": "",
    "cost": "time; N images and K classes of a batch, d of an embedding, C classes of the data",
    "from": "",
}


def chosen(
    losses: Sequence[registry.Component], kinds: Sequence[str], since: int | None
) -> list[registry.Component]:
    """Return the losses of some kinds, or of all, whose paper is of a year or later.

    Raises:
        UserError: there is no such kind.
    """
    for kind in kinds:
        if kind not in KINDS or not kind:
            known = [name for name in KINDS if name]
            hint = did_you_mean(kind, known) or f"; there are {', '.join(known)}"
            raise UserError(f"--kind {kind}: losses are of no such kind{hint}")
    return [
        loss
        for loss in losses
        if (not kinds or loss.facts.get("kind") in kinds)
        and (since is None or year_of(loss) >= since)
    ]


def year_of(component: registry.Component) -> int:
    """Return the year of a component's paper; 0 if it has none."""
    found = re.search(r"\b(1[89]|20)\d\d\b", component.paper)
    return int(found[0]) if found else 0


def table(found: Sequence[registry.Component], room: int) -> RenderableType:
    """Return the tables of losses, a line each, and below them those that are broken."""
    recorded = record.read()
    rows = {loss.name: _cells(loss, recorded) for loss in found if not loss.broken}
    heads = [head for head in _COLUMNS if any(row[head] for row in rows.values())]
    widths = [width([head, *(row[head] for row in rows.values())]) for head in heads]
    fit = sum(end - 2 <= room for end in accumulate(widths))
    shown, dropped = heads[:fit], heads[fit:]
    groups = []
    for kind, title in KINDS.items():
        own = [loss for loss in found if loss.name in rows and _kind(loss) == kind]
        own.sort(key=lambda loss: (year_of(loss), loss.name))
        if own:
            cells = [[rows[loss.name][head] for head in shown] for loss in own]
            groups.append(_group(title, shown, widths, cells))
    lines = [f"{head}: {text}" for head in shown if (text := _COLUMNS[head])]
    if dropped:
        need = "needs" if len(dropped) == 1 else "need"
        lines.append(f"{one_of(dropped, 'and')} {need} a wider terminal")
    unusable = [(escape(one.name), broken(one), origin(one)) for one in found if one.broken]
    others = [table_of("", ("broken", "reason", "from"), unusable)] if unusable else []
    return Group(*groups, *(f"[dim]{line}[/]" for line in lines), *others)


def _group(
    title: str, heads: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]]
) -> RenderableType:
    """Return a table whose columns are as wide as those of the other groups."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for head, wide in zip(heads, widths, strict=False):
        grid.add_column(head, overflow="fold", min_width=max(1, wide - 2))
    for row in rows:
        grid.add_row(*row)
    return Group(grid, "")


def _kind(loss: registry.Component) -> str:
    kind = loss.facts.get("kind", "")
    return kind if kind in KINDS else ""


def _cells(loss: registry.Component, recorded: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a loss: what it needs and costs, and the checks it passes."""
    year = re.match(r".*? \d{4}", loss.paper)
    own = loss.distribution == "metric-zoo"
    cells = {fact: escape(loss.facts.get(fact, "")) for fact in ("cost", "sampler")}
    return cells | {
        "name": f"[cyan]{escape(loss.name)}[/]",
        "paper": escape(shorten(year[0] if year else loss.paper, 40, placeholder=" …")),
        "classes": "needed" if "num_classes" in loss.arguments else "",
        "checks": record.in_short(recorded.get(loss.name) if own else None),
        "from": origin(loss),
    }
