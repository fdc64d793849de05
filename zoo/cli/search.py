"""``zoo index`` and ``zoo search``: find similar images with a trained network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.markup import escape
from rich.table import Table

from zoo.cli.messages import say
from zoo.cli.options import (
    PATH,
    batch_size,
    computing,
    device,
    images,
    max_pixels,
    processes,
    quiet,
    run,
)
from zoo.errors import UserError
from zoo.progress import Reporter, echo, stdout
from zoo.support.text import printable

if TYPE_CHECKING:
    from zoo.search.index import Hit, Index


@click.command()
@run
@images
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="Folder to write.")
@click.option(
    "--kind",
    default="auto",
    metavar="KIND",
    help="flat (exact), hnsw or ivf (faster, may miss some), ivfpq (in files, for more than memory "
    "holds); auto goes by the number of images.",
)
@click.option(
    "--refine",
    type=click.IntRange(min=0),
    metavar="N",
    help="For ivfpq: candidates compared by their embeddings; by default 200, 0 keeps none.",
)
@device
@batch_size
@max_pixels
@processes
@quiet
def index(
    run: str,
    folder: Path,
    output: Path,
    kind: str,
    refine: int | None,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    processes: int,
    quiet: bool,
) -> None:
    """Make an index of a folder of images, for `zoo search`.

    By default flat up to 100,000 images, then hnsw up to a million, then ivf, and ivfpq if the
    embeddings do not fit in memory. For all but flat, the search effort is raised until 95 % of the
    ten nearest neighbours are found; the share is printed for each value that was tried.

    Example: [cyan]zoo index ice_folder photographs -o index[/]
    """
    from zoo.search import index as indices

    with computing():
        made = indices.build(
            run,
            folder,
            output,
            kind=kind,
            refine=refine,
            device=device,
            batch_size=batch_size,
            max_pixels=max_pixels,
            processes=processes,
            reporter=Reporter(quiet=quiet),
        )
    for line in _built(made):
        say(line)


@click.command()
@click.argument("index", type=PATH, help="The folder that `zoo index` made.")
@click.argument("images", nargs=-1, required=True, type=PATH, metavar="IMAGE...", help="Queries.")
@click.option(
    "-k", type=click.IntRange(min=1), default=10, metavar="K", help="Neighbours; by default 10."
)
@click.option("--run", help="The run of the index, if its folder was moved.")
@click.option("--exclude-self", is_flag=True, help="Leave out the query itself, known by its path.")
@click.option(
    "-o", "--sheet", type=PATH, metavar="FILE", help="Write a contact sheet, such as sheet.png."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verify", is_flag=True, help="Also check files of more than 1 GiB to their end.")
@device
@batch_size
@max_pixels
@quiet
def search(
    index: Path,
    images: Sequence[Path],
    k: int,
    run: str | None,
    exclude_self: bool,
    sheet: Path | None,
    as_json: bool,
    verify: bool,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    quiet: bool,
) -> None:
    """Find the images of an index that are most similar to query images.

    Similar is what has a large cosine, or a small distance if the run has a model.space. A query
    that is in the index comes first, with cosine 1 or distance 0, unless --exclude-self is given.

    Examples: [cyan]zoo search index query.jpg[/],
    [cyan]zoo search index a.jpg b.jpg -k 5 --sheet sheet.png[/]
    """
    from zoo.search import index as indices
    from zoo.search import sheet as search_sheet
    from zoo.trained import files

    for path in images:
        if not os.path.isfile(path):  # noqa: PTH113 Path.is_file raises if a name is too long
            what = "is a folder" if os.path.isdir(path) else "does not exist"  # noqa: PTH112
            raise UserError(printable(f"{path}: {what}; give image files"))
    if sheet is not None:
        search_sheet.check_ending(sheet)
        if sheet.resolve() in [path.resolve() for path in images]:
            raise UserError(printable(f"{sheet}: is a query; give the sheet another name"))
    reporter = Reporter(quiet=quiet)
    with computing():
        opened = indices.open(index, run=run, device=device, verify=verify)
        if sheet is not None and sheet in opened:
            raise UserError(printable(f"{sheet}: is in the index; give the sheet another name"))
        found = files.embed_queries(
            opened.model, images, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
        )
    queries = [Path(name) for name in found.names]
    lists = opened.search_embeddings(found.embeddings, k, paths=queries, exclude_self=exclude_self)
    for line in _shortfalls(opened, queries, lists, k, exclude_self):
        reporter.say(printable(line))
    if sheet is not None:
        _draw(sheet, queries, lists, max_pixels, reporter)
    if as_json:
        echo(json.dumps(_as_json(opened, queries, lists, found.unreadable), indent=2))
    else:
        _print(queries, lists)


def _built(made: Index) -> Iterator[str]:
    """Yield the lines that describe a new index."""
    from zoo.search.neighbours import TARGET_RECALL

    meta = made.meta
    yield f"{made.folder}: {meta.count:,} images, {meta.kind}, d {meta.embedding_size}"
    for trial in made.trials:
        chosen = "  chosen" if trial.value == meta.value else ""
        yield f"{meta.parameter} {trial.value:>5}  recall@10 {100 * trial.recall:6.2f}{chosen}"
    if meta.recall_at_10 is not None and meta.recall_at_10 < TARGET_RECALL:
        more = "a larger --refine finds more, and " if meta.kind == "ivfpq" else ""
        yield f"less than the target of {100 * TARGET_RECALL:.0f} %; {more}--kind flat finds all"


def _shortfalls(
    opened: Index,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    k: int,
    exclude_self: bool,
) -> Iterator[str]:
    """Yield a line for each query that has fewer neighbours than were asked for."""
    if k > len(opened):
        yield f"{opened.folder}: has {len(opened):,} images, not {k:,}"
    for query, hits in zip(queries, lists, strict=True):
        possible = min(k, len(opened) - (exclude_self and query in opened))
        if len(hits) < possible:
            yield f"{query}: {len(hits):,} of {possible:,} found; an index of --kind flat finds all"


def _print(queries: Sequence[Path], lists: Sequence[Sequence[Hit]]) -> None:
    console = stdout()
    for query, hits in zip(queries, lists, strict=True):
        title = f"[bold]{escape(printable(str(query)))}[/]"
        console.print(title, soft_wrap=True)
        table = Table(box=None)
        table.add_column("rank", justify="right")
        by_distance = any(hit.cosine is None for hit in hits)
        table.add_column("distance" if by_distance else "cosine", justify="right")
        table.add_column("image", overflow="fold")
        for hit in hits:
            own = " [dim](itself)[/]" if hit.itself else ""
            table.add_row(str(hit.rank), _nearness(hit, 4), escape(printable(hit.name)) + own)
        console.print(table)
        console.print()


def _nearness(hit: Hit, digits: int) -> str:
    """Return the cosine of a hit, or its distance."""
    return f"{hit.distance if hit.cosine is None else hit.cosine:.{digits}f}"


def _as_json(
    opened: Index,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    unreadable: dict[str, str],
) -> dict[str, Any]:
    found = [
        {
            "query": str(query),
            "hits": [_facts(hit) for hit in hits],
        }
        for query, hits in zip(queries, lists, strict=True)
    ]
    return {
        "index": str(opened.folder),
        "kind": opened.kind,
        "run": opened.meta.run.name,
        "queries": found,
        "unreadable": unreadable,
    }


def _facts(hit: Hit) -> dict[str, Any]:
    """Return a hit for machines, with a cosine or a distance."""
    other = "distance" if hit.distance is None else "cosine"
    return {k: v for k, v in hit._asdict().items() if k != other} | {"path": str(hit.path)}


def _draw(
    sheet: Path,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    max_pixels: int,
    reporter: Reporter,
) -> None:
    from zoo.search.sheet import MOST_ROWS, Picture, draw

    rows = [
        (
            Picture(query, "query", "/".join(query.parts[-2:])),
            [
                Picture(
                    hit.path,
                    f"{hit.rank}  {_nearness(hit, 3)}" + " itself" * hit.itself,
                    hit.name,
                    hit.itself,
                )
                for hit in hits
            ],
        )
        for query, hits in zip(queries, lists, strict=True)
    ]
    draw(sheet, rows, max_pixels)
    few = f", the first {MOST_ROWS} queries" if len(rows) > MOST_ROWS else ""
    reporter.say(printable(f"{sheet}: contact sheet{few}"))
