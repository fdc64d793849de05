"""``zoo report`` and ``zoo plot``: what runs look like, in a browser and in a paper."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from zoo._words import printable
from zoo.progress import Reporter, stdout


@click.command()
@click.argument(
    "directory", type=click.Path(path_type=Path), default="runs", help="Folder of run folders."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="report",
    metavar="DIR",
    help="Folder to write; a report that is in it is replaced. [default: report]",
)
@click.option("--runs", default="*", metavar="GLOB", help="Only runs of such names, as 'ice_*'.")
@click.option(
    "--gallery",
    type=click.IntRange(min=0),
    default=24,
    metavar="N",
    help="Queries that are shown with their nearest ten, for each run. [default: 24]",
)
@click.option(
    "--tsne-items",
    type=click.IntRange(min=5),
    default=2000,
    metavar="N",
    help="Images in a map, at most. [default: 2000]",
)
@click.option("--no-tsne", is_flag=True, help="No maps, which take the longest.")
@click.option("-q", "--quiet", is_flag=True, help="Print the place of the report only.")
def report(directory: Path, output: Path, runs: str, gallery: int, tsne_items: int, no_tsne: bool, quiet: bool) -> None:
    """Write a report of the runs under a folder: a static site that needs no network.

    Examples: [cyan]zoo report[/], [cyan]zoo report runs -o report --runs 'ice_*'[/]
    """
    from zoo.report import site

    reporter = Reporter(quiet=quiet)
    items = 0 if no_tsne else tsne_items
    summary = site.build(
        directory, output, runs=runs, queries=gallery, items=items, reporter=reporter
    )
    for reason, names in summary.missing.items():
        reporter.say(printable(f"no gallery and no map of {', '.join(names)}: {reason}"))
    stdout().print(str(summary.index), markup=False, soft_wrap=True)
