"""``zoo data``: list, check and download data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from zoo import registry
from zoo.base import Count, Finding, Survey, data_dir
from zoo.errors import UserError
from zoo.progress import Reporter, stdout

if TYPE_CHECKING:
    from zoo.registry.components import Component

_root = click.option("--root", metavar="DIR", help="Its folder; by default in $ZOO_DATA or cache.")
_name = click.argument("name", help="A name that `zoo data list` shows.")

_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}
_SHOWN = 100  # findings on a terminal


@click.group(no_args_is_help=True)
def data() -> None:
    """List, check and download data sets."""


@data.command("list")
def list_() -> None:
    """List the data sets: their size, where they are on this machine, and in which layout."""
    table = Table(box=None, pad_edge=False, caption_justify="left")
    for head in ("name", "classes", "images", "bytes", "on this machine"):
        number = head in ("classes", "images", "bytes")
        table.add_column(head, overflow="fold", justify="right" if number else "left")
    for name in registry.names("datasets"):
        table.add_row(*_row(registry.component("datasets", name)))
    table.caption = "classes and images: for training + for testing, as published"
    stdout().print(table)


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
    from zoo.support.text import counted

    found = survey.survey(name, root)
    console = stdout()
    _print_place(name, found)
    console.print(_counts(found, getattr(registry.load("datasets", name), "table", {})))
    ranks = list(_COLOURS)
    findings = sorted(found.findings, key=lambda one: ranks.index(one.severity))
    shown = findings[:_SHOWN] if console.is_terminal else findings
    if shown:
        console.print(_findings(shown))
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


def _row(component: Component) -> tuple[str, ...]:
    name = escape(component.name)
    try:
        if component.broken:
            raise UserError(component.broken)
        target = registry.load("datasets", component.name)
    except UserError as error:
        return f"[red]{name}[/]", "", "", "", f"[red]broken: {escape(_plain(str(error)))}[/]"
    table: dict[str, Count] = getattr(target, "table", {})
    classes = " + ".join(f"{count.classes:,}" for count in table.values())
    images = " + ".join(f"{count.images:,}" for count in table.values())
    return f"[cyan]{name}[/]", classes, images, *_place(component.name, target)


def _place(name: str, target: Any) -> tuple[str, str]:
    """Return the size of a data set on this machine, and where it is or how to get it."""
    from zoo.data import survey
    from zoo.support.text import counted

    if not getattr(target, "sources", ()):
        has_root = any(p.name == "root" for p in registry.describe("datasets", name).parameters)
        return "", "your own: dataset.root=<folder>" if has_root else "needs no files"
    folder = data_dir(name)
    try:
        if not folder.exists() or all(one.name.startswith(".") for one in folder.iterdir()):
            by_hand = not all(source.urls for source in target.sources)
            command = f"zoo data download {name}" + " says what to put there" * by_hand
            return "", escape(_plain(f"not in {folder}") + f"; {command}")
        found: Survey = target.survey(content=False)
        size = decimal(survey.size(found.folder or folder))
    except (UserError, OSError) as error:
        return "", f"[yellow]{escape(_plain(str(error).splitlines()[0]))}[/]"
    where = escape(f"{_plain(str(found.folder))}\n{found.layout}")
    errors = sum(one.severity == "error" for one in found.findings)
    if errors:
        wrong = counted(errors, "error")
        where += f"\n[red]{wrong}; zoo data verify {escape(name)}[/]"
    return size, where


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


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table(box=None)
    for head in ("severity", "where", "what"):
        table.add_column(head, overflow="fold")
    for one in findings:
        where, what = escape(_plain(one.where)), escape(_plain(one.what))
        table.add_row(f"[{_COLOURS[one.severity]}]{one.severity}[/]", where, what)
    return table


def _plain(text: str) -> str:
    """Return a text; quoted if it could steer a terminal or cannot be written."""
    return text if text.isprintable() else repr(text)
