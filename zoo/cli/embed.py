"""``zoo embed``: write the embeddings of a folder of images to a file."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

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
from zoo.progress import Reporter
from zoo.support.text import printable


@click.command()
@run
@images
@click.option(
    "-o", "--output", type=PATH, required=True, metavar="FILE", help=".npz file to write."
)
@device
@batch_size
@max_pixels
@processes
@quiet
def embed(
    run: str,
    folder: Path,
    output: Path,
    device: str,
    batch_size: int | None,
    max_pixels: int,
    processes: int,
    quiet: bool,
) -> None:
    """Embed a folder of images with the network of a run.

    The file has embeddings, float32 (N, d) of length 1, and names, the paths within the folder;
    run, digest, network, version and folder record their origin. Files that cannot be read are
    skipped and reported.

    Example: [cyan]zoo embed ice_folder photographs -o embeddings.npz[/]
    """
    from zoo.support.files import check_folder
    from zoo.trained import files, network

    reporter = Reporter(quiet=quiet)
    if output.suffix != ".npz":
        raise UserError(printable(f"{output}: must end in .npz"))
    check_folder(output)
    with computing():
        model = network.load(run, device)
        found = files.embed_folder(
            model,
            folder,
            batch_size=batch_size,
            max_pixels=max_pixels,
            processes=processes,
            reporter=reporter,
        )
    files.report_unreadable(found, reporter)
    files.save(output, model, found)
    shape = " x ".join(f"{side:,}" for side in found.embeddings.shape)
    say(f"{output}: embeddings {shape}")
