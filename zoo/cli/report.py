"""``zoo report`` and ``zoo plot``: runs as pages for a browser and as figures for a paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from zoo.cli.messages import say
from zoo.progress import Reporter
from zoo.support.text import printable

_F = TypeVar("_F", bound=Callable[..., Any])


def _output(metavar: str, help: str, **more: Any) -> Callable[[_F], _F]:
    kind = click.Path(path_type=Path, dir_okay=metavar == "DIR")
    return click.option("-o", "--output", type=kind, metavar=metavar, help=help, **more)


def _number(name: str, least: int, default: int, help: str) -> Callable[[_F], _F]:
    kind = click.IntRange(min=least)
    return click.option(name, type=kind, default=default, metavar="N", show_default=True, help=help)


def _items(name: str) -> Callable[[_F], _F]:
    return _number(name, 5, 2000, "Images in a map, at most.")


@click.command()
@click.argument(
    "directory",
    type=click.Path(path_type=Path),
    default="runs",
    help="The folder that contains runs; by default runs/.",
)
@_output(
    "DIR",
    "Folder to write; a report that is in it is replaced.",
    default="report",
    show_default=True,
)
@click.option(
    "--runs", default="*", metavar="GLOB", help="Only runs with such names, such as 'ice_*'."
)
@_number("--gallery", 0, 24, "Queries that are shown with their nearest ten, for each run.")
@_items("--tsne-items")
@click.option("--no-tsne", is_flag=True, help="Leave out the maps, which take longest.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the path of the report.")
def report(
    directory: Path,
    output: Path,
    runs: str,
    gallery: int,
    tsne_items: int,
    no_tsne: bool,
    quiet: bool,
) -> None:
    """Write a report of the runs under a folder: a static site that needs no network.

    It needs plotly: the extra metric-zoo\\[report].

    Examples: [cyan]zoo report[/], [cyan]zoo report runs -o report --runs 'ice_*'[/]
    """
    from zoo.report import site

    reporter = Reporter(quiet=quiet)
    items = 0 if no_tsne else tsne_items
    summary = site.build(
        directory, output, runs=runs, queries=gallery, items=items, reporter=reporter
    )
    for reason, names in summary.missing.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown = ", ".join(names[:3]) + more
        reporter.say(printable(f"no gallery and no map of {shown}: {reason}"))
    say(str(summary.page))


_runs = click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN...",
    help="Run folders, names in runs/ or their beginnings, or folders that contain runs. All seeds "
    "of an experiment are used.",
)
_figure = _output("FILE", "A .pdf, .svg or .png file.", required=True)


@click.group(no_args_is_help=True)
def plot() -> None:
    """Draw figures for papers, in colours that colour-blind readers can tell apart."""


@plot.command()
@_runs
@_figure
def curves(runs: tuple[str, ...], output: Path) -> None:
    """Draw the loss by iteration, and Recall@K; seeds are thin lines around their mean.

    Recall@1 is drawn by iteration where it was measured along the way (evaluate.every), else
    Recall@K by K.

    Examples: [cyan]zoo plot curves ice_glyphs rll_glyphs -o curves.pdf[/],
    [cyan]zoo plot curves runs -o curves.svg[/]
    """
    from zoo.report import figures

    figures.check_output(output)
    figures.curves(figures.find_runs(runs), output)
    say(str(output))


@plot.command()
@_runs
@_figure
@click.option("--setting", metavar="KEY", help="Only by this setting, such as loss.scale.")
def sweep(runs: tuple[str, ...], output: Path, setting: str | None) -> None:
    """Draw Recall@1 by each setting that was swept; bars are the deviation over the seeds.

    Example: [cyan]zoo plot sweep runs --setting loss.scale -o scale.pdf[/]
    """
    from zoo.report import figures

    figures.check_output(output)
    figures.sweep(figures.find_runs(runs), output, setting)
    say(str(output))


@plot.command()
@_runs
@_figure
@_items("--items")
def tsne(runs: tuple[str, ...], output: Path, items: int) -> None:
    """Draw a t-SNE map of the test embedding, with as many images as fit.

    Example: [cyan]zoo plot tsne ice_glyphs -o map.pdf[/]
    """
    from zoo.report import figures

    figures.check_output(output)
    figures.draw_map(figures.find_runs(runs), output, items, Reporter())
    say(str(output))
