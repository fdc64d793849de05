"""``zoo leaderboard``: finished runs as tables, in any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from zoo.errors import UserError
from zoo.progress import Reporter, echo, stdout
from zoo.support.text import printable

if TYPE_CHECKING:
    from zoo.comparing.spread import Spread

# As zoo.leaderboard has them; to import it takes longer than to show the help.
_FORMATS = ("text", "markdown", "csv", "json", "latex", "html")


def _filter(name: str, what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        f"--{name}", multiple=True, metavar="GLOB", help=f"Only runs {what}; may be repeated."
    )


@click.command("leaderboard")
@click.argument(
    "directories",
    nargs=-1,
    metavar="[DIR]...",
    type=click.Path(path_type=Path),
    help="Folders that contain runs; by default runs/.",
)
@click.option(
    "-f",
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    help="The format; by default that of the ending of the -o file, or text.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file."
)
@click.option(
    "--shape",
    default="runs",
    show_default=True,
    metavar="NAME",
    help="runs: a table for each data set, a row for each experiment. table2 to table6: the rows "
    "and columns of that table of the ICE paper. Or a YAML file like those in configs/tables.",
)
@click.option(
    "--spread",
    type=click.Choice(["std", "ci"]),
    default="std",
    show_default=True,
    help="The number after ±: the standard deviation over the seeds, or half of the 95 % "
    "interval of their mean.",
)
@_filter("dataset", "on these data sets, by name or folder; a --shape has them as columns")
@_filter("backbone", "with these backbones")
@_filter("loss", "trained with these losses; none: not trained")
@_filter("size", "with embeddings of these sizes")
@_filter("name", "of configs with these names")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="R@1, R@2 and so on, highest first; or name, loss, backbone, size, seeds, minutes, lowest "
    "first. By default the first R@K.",
)
@click.option(
    "--group-by",
    "apart",
    multiple=True,
    type=click.Choice(["dataset", "backbone", "size"]),
    help="A separate table for each; data sets always have one. May be repeated.",
)
@click.option(
    "--paper", is_flag=True, help="With a --shape of the paper: show its values below ours."
)
@click.option(
    "--others",
    is_flag=True,
    help="With a --shape of the paper: add rows for the other experiments.",
)
@click.option("--standalone", is_flag=True, help="With latex: write a complete document.")
@click.option(
    "--settings",
    is_flag=True,
    help="Show all settings and columns, on several lines a row if the terminal is too narrow.",
)
@click.option(
    "--significance",
    is_flag=True,
    help="Mark the rows that are not significantly worse than the best at the first K.",
)
def leaderboard(
    directories: tuple[Path, ...],
    kind: str | None,
    output: Path | None,
    shape: str,
    spread: Spread,
    sort: str | None,
    apart: tuple[str, ...],
    paper: bool,
    others: bool,
    standalone: bool,
    settings: bool,
    significance: bool,
    **wanted: tuple[str, ...],
) -> None:
    """Show the finished runs under some folders: Recall@K by data set, best first.

    The best is bold. A run that is not comparable with most, since its network, embedding size,
    preparation of images or images differ, has a mark that is explained below the table.

    Examples: [cyan]zoo leaderboard[/], [cyan]zoo leaderboard --shape table3 --paper[/],
    [cyan]zoo leaderboard --loss 'ice*' --sort minutes --spread ci[/],
    [cyan]zoo leaderboard runs other_runs -o table.tex[/]
    """
    from zoo.tables import leaderboard as boards
    from zoo.tables.formats import terminal

    kind = kind or _by_name(output, boards.FORMATS)
    _check(shape, sort, apart, paper or others, standalone, kind)
    if settings and (output is not None or kind != "text"):
        raise UserError("--settings: is for tables in the terminal; files have all columns")
    if significance and shape != "runs":
        raise UserError(f"--significance: is for tables of runs, not for --shape {shape}")
    made = boards.tables(
        boards.load(*(directories or ("runs",))),
        shape,
        wanted=wanted,
        spread=spread,
        sort=sort,
        apart=[one for one in apart if one != "dataset"],
        paper=paper,
        others=others,
        significance=significance,
    )
    if output is not None:
        _write(output, boards.render(made, kind, standalone))
        Reporter().say(printable(f"{output}: {kind}"))
    elif kind != "text":
        echo(boards.render(made, kind, standalone), end="")
    else:
        console = stdout()
        for table in made:
            shown = terminal.render(table, console.width, settings=settings)
            console.print(shown, "", crop=not settings)


def _by_name(output: Path | None, endings: dict[str, str]) -> str:
    """Return the format that a file's name asks for."""
    if output is None:
        return "text"
    for kind, ending in endings.items():
        if output.suffix.lower() == ending:
            return kind
    known = ", ".join(endings.values())
    raise UserError(f"{output}: say which --format, or let it end in one of {known}")


def _check(
    shape: str, sort: str | None, apart: tuple[str, ...], added: bool, standalone: bool, kind: str
) -> None:
    """Refuse options that would have no effect."""
    for option, given in (("--sort", sort), ("--group-by", apart)):
        if given and shape != "runs":
            raise UserError(f"{option}: --shape {shape} has the paper's rows, in its order")
    if added and shape == "runs":
        raise UserError("--paper, --others: are for a --shape of the paper, such as table3")
    if standalone and kind != "latex":
        raise UserError(f"--standalone: is for --format latex, not {kind}")


def _write(path: Path, text: str) -> None:
    from zoo.support.files import check_folder, replace_file, writing

    check_folder(path)
    with writing(path):
        replace_file(path, lambda file: file.write(text.encode()))
