"""A comparison for people: two tables, and notes on how to read them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zoo.comparing.compare import LEVEL, Comparison, TestedDifference
from zoo.comparing.significance import Interval
from zoo.support.text import counted, that_fit

_VERDICT = {"A": "A is better", "B": "B is better", None: "unclear"}
_EXPENDABLE = (("only A", "only B"), ("p of queries",), ("A", "B"), ("95 %",))
_FEW_CLASSES = 50  # with fewer the bootstrap's interval is too narrow, see docs/compare.md
_FEWEST = 6  # units with which the permutation test can give p < 0.05: 2 / 2^6


def to_table(found: Comparison, width: int) -> Group:
    """Return a comparison for a terminal of a width, without the columns that do not fit."""
    parts: list[RenderableType] = [*_heading(found), Text(""), *_networks(found, width)]
    if len(found.a) > 1:
        parts += [Text(""), *_seeds(found, width)]
    return Group(*parts, Text(""), *(Text(note, style="dim") for note in notes(found)))


def notes(found: Comparison) -> Iterator[str]:
    """Yield notes on a comparison, each a sentence or two."""
    if found.left_out:
        yield f"Left out, since the other side lacks their seed: {', '.join(found.left_out)}."
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
            "One run each: this compares two trained networks, not two losses. To compare losses, "
            "train both with several seeds."
        )


def _on_queries(found: Comparison) -> Iterator[str]:
    classes = found.at[0].classes
    if classes is None:
        yield (
            "Queries of one class are alike, so p is too small and the interval too narrow; the "
            f"classes of the queries are not known ({found.without_classes})."
        )
        return
    yield (
        "p of queries is McNemar's exact test"
        + (", generalised to several seeds" if len(found.a) > 1 else "")
        + "; it assumes independent queries. Interval, p of classes and verdict do not: their "
        f"units are the {counted(classes.units, 'class', 'classes')}."
    )
    if classes.units < _FEWEST:
        yield f"With fewer than {_FEWEST} classes p cannot be below {LEVEL:g}."
    elif classes.units < _FEW_CLASSES:
        yield f"With {classes.units} classes the interval is somewhat too narrow."


def _on_seeds(pairs: int) -> Iterator[str]:
    yield (
        "Over the seeds, p of t assumes normally distributed differences"
        + (", which so few cannot confirm." if pairs < 10 else ".")
    )
    if pairs < _FEWEST:
        yield (
            f"The exact test assumes nothing, but with {pairs} pairs it cannot give less than "
            f"p = {2 / 2**pairs:g}; for p < {LEVEL:g} it needs {_FEWEST} seeds."
        )


def _heading(found: Comparison) -> Iterator[Text]:
    for side, names in (("A", found.a), ("B", found.b)):
        yield Text(f"{side}  {', '.join(names)}", style="bold")
    classes = found.at[0].classes
    size = f"{counted(found.queries, 'query', 'queries')}"
    if classes is not None:
        size += f" of {counted(classes.units, 'class', 'classes')}"
    yield Text(f"Recall@K in percent, {found.dataset}: {size}")


def _networks(found: Comparison, width: int) -> Iterator[RenderableType]:
    known = found.at[0].classes is not None
    rows = []
    for at in found.at:
        one = at.networks
        numbers = {
            "K": str(at.k),
            "A": f"{100 * at.a:.2f}",
            "B": f"{100 * at.b:.2f}",
            "A - B": f"{100 * (at.a - at.b):+.2f}",
            "95 %": _interval(one.interval),
            "only A": f"{at.only_a:,}",
            "only B": f"{at.only_b:,}",
            "p of queries": in_short(at.queries.corrected),
        }
        by_class = {"p of classes": in_short(one.corrected)} if known else {}
        rows.append(numbers | by_class | {"verdict": _verdict(one)})
    title = f"These networks, on other {'classes' if known else 'images'} of this kind"
    yield from _table(rows, width, title if len(found.a) > 1 else None)


def _seeds(found: Comparison, width: int) -> Iterator[RenderableType]:
    rows = []
    for at in found.at:
        one, exact = at.seeds, at.seeds_exact
        rows.append(
            {
                "K": str(at.k),
                "A - B": f"{100 * (at.a - at.b):+.2f}",
                "95 %": _interval(one.interval if one else None),
                "p of t": in_short(one.corrected) if one else "–",
                "p exact": "–" if exact is None else in_short(exact),
                "verdict": _verdict(one),
            }
        )
    title = f"Networks trained again, on these images: {len(found.a)} seeds"
    yield from _table(rows, width, title)


def _table(rows: list[dict[str, str]], width: int, title: str | None) -> Iterator[RenderableType]:
    """Yield a table, and a line on the columns that the width leaves out."""
    heads = list(rows[0])
    widths = {head: max(map(len, [head, *(row[head] for row in rows)])) for head in heads}
    only_p = "p of queries" if "p of classes" not in heads else ""
    kept = that_fit(widths, width, [group for group in _EXPENDABLE if only_p not in group])
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for head in kept:
        table.add_column(head, justify="left" if head == "verdict" else "right", no_wrap=True)
    for row in rows:
        verdict = Text(row["verdict"], "dim" if row["verdict"] == _VERDICT[None] else "bold")
        table.add_row(*(row[head] for head in kept[:-1]), verdict)
    yield table
    if left_out := [head for head in heads if head not in kept]:
        yield Text(f"Not shown at a width of {width}: {', '.join(left_out)}", style="dim")


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    return f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"


def in_short(p: float) -> str:
    """Return a p-value in three decimals, or how small it is."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(found: TestedDifference | None) -> str:
    return _VERDICT[found.better if found else None]
