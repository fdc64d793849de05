"""``zoo evaluate``: measure embeddings that come from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rich_click as click
from rich.table import Table

from zoo.cli.options import PATH, computing
from zoo.errors import UserError
from zoo.progress import echo, stdout

_NONE = "none"
_DEFAULT = ("map_at_r", "r_precision")


@click.command()
@click.argument("file", type=PATH, help="An .npz, .npy or .parquet file.")
@click.option(
    "--labels",
    type=PATH,
    metavar="FILE",
    help="Labels, if the file has none: .npy, or a label in each line.",
)
@click.option(
    "--gallery", type=PATH, metavar="FILE", help="Search in this file; the first has the queries."
)
@click.option("--gallery-labels", type=PATH, metavar="FILE", help="Labels of the gallery.")
@click.option(
    "--ks", default="1,2,4,8", show_default=True, metavar="K,K", help="The K of Recall@K."
)
@click.option(
    "--measures",
    metavar="NAME,NAME",
    help="Some of map_at_r, r_precision, nmi, ami; or none. By default map_at_r,r_precision, and "
    "none with a gallery.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    file: Path,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    ks: str,
    measures: str | None,
    as_json: bool,
) -> None:
    """Measure embeddings of any network: Recall@K, MAP@R, R-precision, NMI, AMI.

    An .npz file has arrays embeddings (n, d) and labels (n,), numbers or text. A .parquet file has
    columns embedding and label. If is_query and is_gallery are there too, queries are searched for
    in the gallery; else each item is searched for among the others. Measured as a run's embeddings
    are: by cosines, exactly, and ties count against the query.

    Examples: [cyan]zoo evaluate embeddings.npz[/],
    [cyan]zoo evaluate queries.npy --labels queries.txt --gallery gallery.npz --ks 1,10[/]
    """
    from zoo.evaluation import given
    from zoo.evaluation.measures import measure
    from zoo.evaluation.names import check_measures
    from zoo.evaluation.recall import recall_at_k

    wanted = _ks(ks)
    asked = _NONE if measures is None else measures
    names = [] if asked == _NONE else check_measures([n.strip() for n in asked.split(",")])
    if gallery_labels is not None and gallery is None:
        raise UserError("--gallery-labels: there is no --gallery")
    found = given.sides(
        given.read(file, labels), None if gallery is None else given.read(gallery, gallery_labels)
    )
    if names and found.gallery is not None:
        raise UserError(f"--measures: {asked} cannot be measured with a gallery; leave it out")
    if measures is None and found.gallery is None:
        names = list(_DEFAULT)
    with computing():
        recall = recall_at_k(
            found.embeddings,
            found.labels,
            wanted,
            gallery=found.gallery,
            gallery_labels=found.gallery_labels,
        )
        others = measure(names, found.embeddings, found.labels).values
    result = {
        "recall": {str(k): value for k, value in recall.items()},
        "measures": others,
        "queries": recall.queries,
        "unmatched": recall.unmatched,
        "gallery": None if found.gallery is None else len(found.gallery),
        "dimensions": int(found.embeddings.shape[1]),
    }
    if as_json:
        echo(json.dumps(result, indent=2))
    else:
        stdout().print(f"[bold]{_title(result)}[/]", _table(result), sep="\n")


def _ks(text: str) -> list[int]:
    """Return the K that were asked for."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) < 2**31 - 1 for part in parts):
        raise UserError(f"--ks: must be whole numbers from 1, such as 1,10,100, not {text!r:.60}")
    return sorted(set(map(int, parts)))


def _title(result: dict[str, Any]) -> str:
    """Return what the table is about."""
    from zoo.support.text import counted

    what = counted(result["queries"], "query", "queries")
    if result["gallery"] is not None:
        what += f" in a gallery of {result['gallery']:,}"
    if result["unmatched"]:
        what += f", {result['unmatched']:,} without another of their class"
    return f"In percent; {what}; {result['dimensions']}-d"


def _table(result: dict[str, Any]) -> Table:
    from zoo.evaluation.names import MEASURES

    table = Table(box=None, pad_edge=False)
    values = {f"R@{k}": value for k, value in result["recall"].items()}
    values |= {MEASURES[name]: value for name, value in result["measures"].items()}
    for head in values:
        table.add_column(head, justify="right")
    table.add_row(*(f"{100 * value:.2f}" for value in values.values()))
    return table
