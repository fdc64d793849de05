"""``zoo data``: list, check and download data sets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import rich_click as click
from click.exceptions import Exit
from rich.cells import cell_len
from rich.filesize import decimal
from rich.markup import escape, render
from rich.table import Table

from zoo import registry
from zoo.base import Count, Finding, Survey, data_dir
from zoo.errors import UserError
from zoo.progress import Reporter, stdout
from zoo.support.text import counted, that_fit

_root = click.option("--root", metavar="DIR", help="Its folder; by default in $ZOO_DATA or cache.")
_name = click.argument("name", help="A name that `zoo data list` shows.")

_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}
_NUMBERS = ("images", "classes", "bytes")  # columns in the order in which they give way
_HERE = "on this machine"
_SHOWN = 100  # findings on a terminal


@click.group(no_args_is_help=True)
def data() -> None:
    """List, check and download data sets."""


@data.command("list")
def list_() -> None:
    """List the data sets: their size, where they are on this machine, and in which layout."""
    console = stdout()
    rows, places = zip(*map(_row, registry.names("datasets")), strict=True)
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    cells = {head: [head, *(render(row[head]).plain for row in rows)] for head in heads}
    widths = {head: max(map(cell_len, column)) for head, column in cells.items()}
    shown = that_fit(widths, console.width, [[head] for head in _NUMBERS])
    table = Table(box=None, pad_edge=False)
    for head in shown:
        table.add_column(head, overflow="fold", justify="right" if head in _NUMBERS else "left")
    for row in rows:
        table.add_row(*(row[head] for head in shown))
    below = ["classes and images: for training + for testing, as published"]
    if left_out := [head for head in heads if head not in shown]:
        below.append(f"Not shown at a width of {console.width}: {', '.join(left_out)}")
    below += [*filter(None, places), f"looked for in {_plain(str(data_dir('<name>')))}"]
    console.print(table)
    console.print(*below, sep="\n", markup=False, soft_wrap=True)


@data.command()
@_name
@_root
def verify(name: str, root: str | None) -> None:
    """Read every image of a data set and report every problem, file by file.

    It checks the numbers of images and classes, that every image decodes, that train and test share
    no image and no class (however it is spelt), and that images.cache matches the images. The exit
    status is 1 if there is a problem. Grey and tiny images are noted, but are not problems.

    Examples: [cyan]zoo data verify sop[/], [cyan]zoo data verify image_folder --root photographs[/]
    """
    from zoo.data import survey

    found = survey.survey(name, root)
    console = stdout()
    _print_place(name, found)
    console.print(_counts(found, getattr(registry.load("datasets", name), "table", {})))
    ranks = list(_COLOURS)
    findings = sorted(found.findings, key=lambda one: ranks.index(one.severity))
    shown = findings[:_SHOWN] if console.is_terminal else findings
    for one in shown:
        console.print(_line(one), soft_wrap=True)
    if len(shown) < len(findings):
        console.print(f"and {len(findings) - len(shown):,} more; append | cat to see all")
    counts = Counter(one.severity for one in findings)
    bad = [counted(counts[one], one) for one in ("error", "warning") if counts[one]]
    console.print(f"{name}: {' and '.join(bad) or 'nothing is wrong'}", markup=False)
    if bad:
        raise Exit(1)


@data.command()
@_name
@_root
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="Download from here instead: a file, or a folder (ending in /) that has the files under "
    "their names. May be repeated.",
)
def download(name: str, root: str | None, urls: tuple[str, ...]) -> None:
    """Download a data set, check it and unpack it.

    A download that was stopped resumes where it ended. If no address offers a file any more, put
    the file into the folder by hand: the same command then checks and unpacks it.

    Examples: [cyan]zoo data download cub200[/], [cyan]zoo data download sop --root /data/sop --url
    http://mirror.example/sop/[/]
    """
    from zoo.data import survey
    from zoo.data.download import UnreachableError

    reporter = Reporter()
    try:
        found = survey.download(name, root, urls, reporter)
    except UnreachableError as error:
        reporter.say(f"error: {error}")
        raise Exit(1) from None
    except KeyboardInterrupt:
        reporter.say("stopped; the same command resumes")
        raise Exit(1) from None
    _print_place(name, found)
    stdout().print(_counts(found, {}))


def _row(name: str) -> tuple[dict[str, str], str]:
    """Return the cells of a data set, and a line that names its folder if that is there."""
    component = registry.component("datasets", name)
    row = {"name": f"[cyan]{escape(name)}[/]", "classes": "", "images": "", "bytes": ""}
    try:
        if component.broken:
            raise UserError(component.broken)
        target = registry.load("datasets", name)
    except UserError as error:
        row["name"] = f"[red]{escape(name)}[/]"
        return row | {_HERE: f"[red]broken: {escape(_plain(str(error)))}[/]"}, ""
    table: dict[str, Count] = getattr(target, "table", {})
    row["classes"] = " + ".join(f"{count.classes:,}" for count in table.values())
    row["images"] = " + ".join(f"{count.images:,}" for count in table.values())
    row["bytes"], row[_HERE], place = _place(name, target)
    return row, place


def _place(name: str, target: Any) -> tuple[str, str, str]:
    """Return a data set's size on this machine, its layout or how to get it, and its folder."""
    from zoo.data import survey

    if not getattr(target, "sources", ()):
        has_root = any(p.name == "root" for p in registry.describe("datasets", name).parameters)
        return "", "your own: dataset.root=<folder>" if has_root else "needs no files", ""
    folder = data_dir(name)
    try:
        if not folder.exists() or all(one.name.startswith(".") for one in folder.iterdir()):
            return "", f"no; zoo data download {escape(name)}", ""
        found: Survey = target.survey(content=False)
        size = decimal(survey.size(found.folder or folder))
    except (UserError, OSError) as error:
        return "", f"[yellow]{escape(_plain(str(error).splitlines()[0]))}[/]", ""
    errors = sum(one.severity == "error" for one in found.findings)
    verify = f"[red]{counted(errors, 'error')}; zoo data verify {escape(name)}[/]"
    return size, verify if errors else escape(found.layout), f"{name}: {_plain(str(found.folder))}"


def _print_place(name: str, found: Survey) -> None:
    console = stdout()
    what = f"{name}: {found.layout}" if found.layout else name
    console.print(what, markup=False, soft_wrap=True)
    if found.folder is not None:
        console.print(_plain(str(found.folder)), markup=False, soft_wrap=True)


def _counts(found: Survey, wanted: dict[str, Count]) -> Table:
    table = Table(box=None)
    heads = ["split", "images", "classes", "images of a class"]
    for head in [*heads, "published"] if wanted else heads:
        table.add_column(head, justify="left" if head in ("split", "published") else "right")
    for split, sizes in found.sizes.items():
        some = [size for size in sizes if size]
        spread = f"{min(some):,} to {max(some):,}" if some else ""
        published = [str(wanted[split])] if split in wanted else []
        table.add_row(split, f"{sum(some):,}", f"{len(some):,}", spread, *published)
    return table


def _line(one: Finding) -> str:
    """Return a finding as one line, however long its path is."""
    where = f"{escape(_plain(one.where))}: " if one.where else ""
    return f"[{_COLOURS[one.severity]}]{one.severity:<7}[/]  {where}{escape(_plain(one.what))}"


def _plain(text: str) -> str:
    """Return a text; quoted if it could steer a terminal or cannot be written."""
    return text if text.isprintable() else repr(text)
