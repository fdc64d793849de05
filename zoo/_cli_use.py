"""``zoo embed``, ``index``, ``search`` and ``export``: a trained network put to use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from zoo._words import printable
from zoo.errors import UserError, out_of_memory
from zoo.progress import Reporter, echo, stdout

if TYPE_CHECKING:
    from zoo.index import Hit, Index

_RUN = "The folder of a run, its name in runs/, or the beginning of that name."
_path = click.Path(path_type=Path)
_run = click.argument("run", help=_RUN)
_images = click.argument("folder", type=_path, help="Images, in folders or not.")
_device = click.option(
    "--device", default="auto", metavar="DEVICE", help="auto, cpu, mps, cuda or cuda:1."
)
_batch_size = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Images at a time; by default as many as the run had at test.",
)
_max_pixels = click.option(
    "--max-pixels",
    type=click.IntRange(min=1),
    default=178_956_970,
    metavar="N",
    help="Leave out larger images; by default those of 179 megapixels.",
)
_quiet = click.option("-q", "--quiet", is_flag=True, help="Print the result only.")


@click.command()
@_run
@_images
@click.option("-o", "--output", type=_path, required=True, metavar="FILE", help="An .npz file.")
@_device
@_batch_size
@_max_pixels
@_quiet
def embed(
    run: str,
    folder: Path,
    output: Path,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    quiet: bool,
) -> None:
    """Embed a folder of images with the network of a run.

    The file has embeddings, float32 (N, d) of length 1, and names, the paths from the folder; run,
    digest, network, version and folder tell where they are from. Files that cannot be read are left
    out and named.

    Example: [cyan]zoo embed ice_folder photographs -o embeddings.npz[/]
    """
    from zoo import _gather, trained
    from zoo._files import check_folder

    reporter = Reporter(quiet=quiet)
    if output.suffix != ".npz":
        raise UserError(printable(f"{output}: what is written is an .npz file; let it end so"))
    check_folder(output)
    with _computing():
        model = trained.load(run, device)
        found = _gather.embed_folder(
            model, folder, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
        )
    _gather.report_unreadable(found, reporter)
    _gather.save(output, model, found)
    shape = " x ".join(f"{side:,}" for side in found.embeddings.shape)
    _say(f"{output}: embeddings {shape}")


@click.command()
@_run
@_images
@click.option("-o", "--output", type=_path, required=True, metavar="DIR", help="A folder.")
@click.option(
    "--kind",
    default="auto",
    metavar="KIND",
    help="flat (exact), hnsw or ivf (faster, may miss some); auto: by the number of images.",
)
@_device
@_batch_size
@_max_pixels
@_quiet
def index(
    run: str,
    folder: Path,
    output: Path,
    kind: str,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    quiet: bool,
) -> None:
    """Make an index of a folder of images, for `zoo search`.

    By default flat up to 100,000 images, then hnsw up to a million, then ivf. For the latter two it
    is printed which share of the ten nearest is found, for each setting that was tried: they are
    raised until it is 95 %.

    Example: [cyan]zoo index ice_folder photographs -o index[/]
    """
    from zoo import index as indices

    with _computing():
        made = indices.build(
            run,
            folder,
            output,
            kind=kind,
            device=device,
            batch_size=batch_size,
            max_pixels=max_pixels,
            reporter=Reporter(quiet=quiet),
        )
    for line in _built(made):
        _say(line)


@click.command()
@click.argument("index", type=_path, help="The folder that `zoo index` made.")
@click.argument("images", nargs=-1, required=True, type=_path, metavar="IMAGE...", help="Files.")
@click.option(
    "-k", type=click.IntRange(min=1), default=10, metavar="K", help="Neighbours; by default 10."
)
@click.option("--run", help="Where its run is now, if that was moved.")
@click.option(
    "--exclude-self", is_flag=True, help="Leave out the file that is searched with, by its path."
)
@click.option(
    "-o", "--sheet", type=_path, metavar="FILE", help="Write a contact sheet, such as sheet.png."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_device
@_batch_size
@_max_pixels
@_quiet
def search(
    index: Path,
    images: Sequence[Path],
    k: int,
    run: str | None,
    exclude_self: bool,
    sheet: Path | None,
    as_json: bool,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    quiet: bool,
) -> None:
    """Find the images of an index that look most like others.

    An image that is in the index itself comes first, with cosine 1, unless --exclude-self.

    Examples: [cyan]zoo search index query.jpg[/],
    [cyan]zoo search index a.jpg b.jpg -k 5 --sheet sheet.png[/]
    """
    from zoo import _contact_sheet, _gather
    from zoo import index as indices

    for path in images:
        if not os.path.isfile(path):  # noqa: PTH113 a path's own raises for a name too long
            what = "is a folder" if os.path.isdir(path) else "does not exist"  # noqa: PTH112
            raise UserError(printable(f"{path}: {what}; give files of images"))
    if sheet is not None:
        _contact_sheet.check_ending(sheet)
        if sheet.resolve() in [path.resolve() for path in images]:
            raise UserError(printable(f"{sheet}: is searched with; give the sheet another name"))
    reporter = Reporter(quiet=quiet)
    with _computing():
        opened = indices.open(index, run=run, device=device)
        if sheet is not None and sheet in opened:
            raise UserError(
                printable(f"{sheet}: is one of the images; give the sheet another name")
            )
        found = _gather.embed_queries(
            opened.model, images, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
        )
    queries = [Path(name) for name in found.names]
    lists = opened.search_embeddings(found.embeddings, k, paths=queries, exclude_self=exclude_self)
    for line in _short(opened, queries, lists, k, exclude_self):
        reporter.say(printable(line))
    if sheet is not None:
        _draw(sheet, queries, lists, max_pixels, reporter)
    if as_json:
        echo(json.dumps(_as_json(opened, queries, lists, found.unreadable), indent=2))
    else:
        _print(queries, lists)


@click.command()
@_run
@click.option(
    "-o",
    "--output",
    type=_path,
    metavar="FILE",
    help="By default the run's name, here, with .onnx or .pt2.",
)
@click.option("--format", metavar="FORMAT", help="onnx or torch; by default as FILE ends, or onnx.")
@click.option(
    "--opset", type=click.IntRange(min=1), metavar="N", help="Version of ONNX's operators."
)
@_quiet
def export(
    run: str, output: Path | None, format: str | None, opset: int | None, quiet: bool
) -> None:
    """Write the network of a run as ONNX or for torch.export, to be used without the zoo.

    It takes uint8 images in RGB; what the backbone wants of them is inside. Scaling and cutting are
    told in the JSON file beside it, and by the lines of Python that are printed. What was written
    is compared with the network, on images of the test split and random ones: if a number differs
    by more than 1e-5, or a nearest neighbour changes, nothing is kept and the status is 1.

    Examples: [cyan]zoo export ice_folder -o model.onnx[/], [cyan]zoo export ice_folder -o
    model.pt2[/]
    """
    from zoo import export as exports
    from zoo.results import RunFolder

    if output is None:
        chosen: Any = format or "onnx"
        name = RunFolder.find(run).path.resolve().name
        output = Path(name + exports.ENDINGS.get(chosen, ".onnx"))
    try:
        done = exports.export(
            run, output, format=format, opset=opset, reporter=Reporter(quiet=quiet)
        )
    except exports.ExportError as error:
        _complain(str(error))
        raise Exit(1) from None
    _say(f"{done.path} and {exports.beside_of(done.path).name}")
    if not quiet:
        _say(f"{done.difference}\n")
        echo(exports.snippet(done), end="")


def _built(made: Index) -> Iterator[str]:
    """Yield what is said of a new index."""
    from zoo._neighbours import WANTED

    meta = made.meta
    yield f"{made.folder}: {meta.count:,} images, {meta.kind}, d {meta.embedding_size}"
    for trial in made.trials:
        chosen = "  chosen" if trial.value == meta.value else ""
        yield f"{meta.parameter} {trial.value:>5}  recall@10 {100 * trial.recall:6.2f}{chosen}"
    if meta.recall_at_10 is not None and meta.recall_at_10 < WANTED:
        yield f"less than the {100 * WANTED:.0f} % that were wanted; --kind flat finds all"


def _short(
    opened: Index,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    k: int,
    exclude_self: bool,
) -> Iterator[str]:
    """Yield what is said where there are fewer neighbours than were asked for."""
    if k > len(opened):
        yield f"{opened.folder}: has {len(opened):,} images, not {k:,}"
    for query, hits in zip(queries, lists, strict=True):
        there = min(k, len(opened) - (exclude_self and query in opened))
        if len(hits) < there:
            yield f"{query}: {len(hits):,} of {there:,} found; an index of --kind flat finds all"


def _print(queries: Sequence[Path], lists: Sequence[Sequence[Hit]]) -> None:
    console = stdout()
    for query, hits in zip(queries, lists, strict=True):
        title = f"[bold]{escape(printable(str(query)))}[/]"
        console.print(title, soft_wrap=True)
        table = Table(box=None)
        table.add_column("rank", justify="right")
        table.add_column("cosine", justify="right")
        table.add_column("image", overflow="fold")
        for hit in hits:
            own = " [dim](itself)[/]" if hit.itself else ""
            table.add_row(str(hit.rank), f"{hit.cosine:.4f}", escape(printable(hit.name)) + own)
        console.print(table)
        console.print()


def _as_json(
    opened: Index,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    unreadable: dict[str, str],
) -> dict[str, Any]:
    found = [
        {
            "query": str(query),
            "hits": [{**hit._asdict(), "path": str(hit.path)} for hit in hits],
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


def _draw(
    sheet: Path,
    queries: Sequence[Path],
    lists: Sequence[Sequence[Hit]],
    max_pixels: int,
    reporter: Reporter,
) -> None:
    from zoo._contact_sheet import MOST_ROWS, Picture, draw

    rows = [
        (
            Picture(query, "query", "/".join(query.parts[-2:])),
            [
                Picture(
                    hit.path,
                    f"{hit.rank}  {hit.cosine:.3f}" + " itself" * hit.itself,
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


@contextmanager
def _computing() -> Iterator[None]:
    """Let a network run at its best; end with one line where a memory is too small."""
    from zoo import environment

    environment.keep_freed_memory()
    try:
        yield
    except Exception as error:
        full = out_of_memory(error)
        if full is None:
            raise
        _complain(f"{full.partition(':')[0]}; give a smaller --batch-size")
        raise Exit(1) from None


def _say(text: str) -> None:
    """Print a line of the result."""
    stdout().print(text, markup=False, soft_wrap=True)


def _complain(message: str) -> None:
    Reporter().say(f"error: {message}")
