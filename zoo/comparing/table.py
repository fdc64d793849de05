"""A comparison as people read it: two tables, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zoo.comparing.compare import LEVEL, Comparison, Finding
from zoo.comparing.significance import Interval
from zoo.support.text import counted

_VERDICT = {"A": "A is better", "B": "B is better", None: "unclear"}
_FEW_CLASSES = 50  # with fewer the bootstrap's interval is too narrow, see docs/compare.md
_FEWEST = 6  # units with which the permutation test can give less than 5 %: 2 / 2^6


def to_table(found: Comparison) -> Group:
    """Return a comparison for the terminal."""
    parts: list[RenderableType] = [*_heading(found), Text(""), _networks(found)]
    if len(found.a) > 1:
        parts += [Text(""), _seeds(found)]
    return Group(*parts, Text(""), *(Text(note, style="dim") for note in notes(found)))


def notes(found: Comparison) -> Iterator[str]:
    """Yield what is to be known of a comparison, each a sentence or two."""
    if found.left_out:
        yield f"Left out, without one of the same seed to pair: {', '.join(found.left_out)}."
    ks = len(found.at)
    yield (
        f"A side is called better where p < {LEVEL:g}"
        + (f"; p is corrected for {ks} K (Holm), intervals are not." if ks > 1 else ".")
    )
    yield from _on_queries(found)
    if len(found.a) > 1:
        yield from _on_seeds(len(found.a))
    else:
        yield (
            "One run each: this tells two trained networks apart, not two losses. For these, train "
            "both with several seeds."
        )


def _on_queries(found: Comparison) -> Iterator[str]:
    classes = found.at[0].classes
    if classes is None:
        yield (
            "Queries of one class are alike, so that p is too small and the interval too narrow; "
            f"which class they are of is not known ({found.without_classes})."
        )
        return
    yield (
        "p of queries is McNemar's exact test"
        + (", carried over to several seeds" if len(found.a) > 1 else "")
        + "; it takes queries for independent. Interval, p of classes and verdict do not: they "
        f"take the {counted(classes.units, 'class', 'classes')} as wholes."
    )
    if classes.units < _FEWEST:
        yield f"With fewer than {_FEWEST} classes p cannot be below {LEVEL:g}."
    elif classes.units < _FEW_CLASSES:
        yield f"With {classes.units} classes the interval is somewhat too narrow."


def _on_seeds(pairs: int) -> Iterator[str]:
    yield (
        "Over the seeds, p of t takes differences to be normally distributed, which so few cannot "
        "show."
        if pairs < 10
        else "Over the seeds, p of t takes differences to be normally distributed."
    )
    if pairs < _FEWEST:
        yield (
            f"The exact test takes nothing for granted, and with {pairs} pairs cannot give less "
            f"than p = {2 / 2**pairs:g}: {_FEWEST} seeds are the fewest with which it can."
        )


def _heading(found: Comparison) -> Iterator[Text]:
    for side, names in (("A", found.a), ("B", found.b)):
        yield Text(f"{side}  {', '.join(names)}", style="bold")
    classes = found.at[0].classes
    size = f"{counted(found.queries, 'query', 'queries')}"
    if classes is not None:
        size += f" of {counted(classes.units, 'class', 'classes')}"
    yield Text(f"Recall@K in percent, {found.dataset}: {size}")


def _networks(found: Comparison) -> Table:
    known = found.at[0].classes is not None
    several = len(found.a) > 1
    heads = ["K", "A", "B", "A - B", "95 %", "only A", "only B", "p of queries"]
    table = _table([*heads, *(["p of classes"] if known else []), "verdict"])
    if several:
        others = "classes" if known else "images"
        table.title = f"These networks, on other {others} of this kind"
    for at in found.at:
        one = at.networks
        table.add_row(
            str(at.k),
            f"{100 * at.a:.2f}",
            f"{100 * at.b:.2f}",
            f"{100 * (at.a - at.b):+.2f}",
            _interval(one.interval),
            f"{at.only_a:,}",
            f"{at.only_b:,}",
            in_short(at.queries.corrected),
            *([in_short(one.corrected)] if known else []),
            _verdict(one),
        )
    return table


def _seeds(found: Comparison) -> Table:
    table = _table(["K", "A - B", "95 %", "p of t", "p exact", "verdict"])
    table.title = f"Networks trained anew, on these images: {len(found.a)} seeds"
    for at in found.at:
        one, exact = at.seeds, at.seeds_exact
        table.add_row(
            str(at.k),
            f"{100 * (at.a - at.b):+.2f}",
            _interval(one.interval if one else None),
            in_short(one.corrected) if one else "–",
            "–" if exact is None else in_short(exact),
            _verdict(one),
        )
    return table


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left", title_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == "verdict" else "right")
    return table


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    return f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"


def in_short(p: float) -> str:
    """Return a p-value in three decimals, or how small it is."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(found: Finding | None) -> Text:
    better = found.better if found else None
    return Text(_VERDICT[better], style="bold" if better else "dim")
