"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click
from click.exceptions import Exit

from zoo.cli.messages import complain
from zoo.errors import UserError, out_of_memory

RUN = "The folder of a run, its name in runs/, or the beginning of that name."
PATH = click.Path(path_type=Path)
run = click.argument("run", help=RUN)
images = click.argument("folder", type=PATH, help="A folder of images, with or without subfolders.")
device = click.option(
    "--device", default="auto", metavar="DEVICE", help="auto, cpu, mps, cuda or cuda:1."
)
batch_size = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Images in a batch; by default as in the run's evaluation.",
)
max_pixels = click.option(
    "--max-pixels",
    type=click.IntRange(min=1),
    default=178_956_970,
    metavar="N",
    help="Skip images with more pixels; by default more than 179 megapixels.",
)


def _not_under_torchrun(context: click.Context, option: click.Parameter, value: int) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("torchrun is for zoo run; this command takes --processes instead")
    return value


processes = click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    callback=_not_under_torchrun,
    metavar="N",
    help="Processes that share the images, each on a GPU of its own, if there are any.",
)
jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at a time; by default one on each GPU, or one on the CPU.",
)
on = click.option(
    "--on",
    metavar="ENGINE",
    help="Where: local (this machine), slurm, ray, or an engine of a plugin; see docs/machines.md.",
)
detach = click.option("--detach", is_flag=True, help="Do it in the background.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Print the result only.")


@contextmanager
def computing() -> Iterator[None]:
    """Keep freed memory for reuse; report in one line when memory runs out."""
    from zoo.support import environment

    environment.keep_freed_memory()
    try:
        yield
    except Exception as error:
        full = out_of_memory(error)
        if full is None:
            raise
        complain(f"{full.partition(':')[0]}; use a smaller --batch-size")
        raise Exit(1) from None
