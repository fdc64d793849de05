"""``zoo report`` and ``zoo plot``: what runs look like, in a browser and in a paper."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

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
@click.option("-q", "--quiet", is_flag=True, help="Print the place of the report only.")
def report(directory: Path, output: Path, runs: str, quiet: bool) -> None:
    """Write a report of the runs under a folder: a static site that needs no network.

    Examples: [cyan]zoo report[/], [cyan]zoo report runs -o report --runs 'ice_*'[/]
    """
    from zoo.report import site

    summary = site.build(directory, output, runs=runs, reporter=Reporter(quiet=quiet))
    stdout().print(str(summary.index), markup=False, soft_wrap=True)
