"""``zoo export``: write a trained network to a file that works without metric-zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click
from click.exceptions import Exit

from zoo.cli.messages import complain, say
from zoo.cli.options import PATH, quiet, run
from zoo.progress import Reporter, echo


@click.command()
@run
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="File to write; by default the name of the run with .onnx or .pt2.",
)
@click.option("--format", metavar="FORMAT", help="onnx or torch; by default from the name of FILE.")
@click.option("--opset", type=click.IntRange(min=1), metavar="N", help="Version of the ONNX opset.")
@quiet
def export(
    run: str, output: Path | None, format: str | None, opset: int | None, quiet: bool
) -> None:
    """Export the network of a run to ONNX or torch.export, to be used without metric-zoo.

    The file takes uint8 RGB images and normalises them itself. How to resize and crop is in the
    JSON file beside it and in the Python code that is printed. The file is compared with the
    network on test images and random ones: if a number differs by more than 1e-5, or a nearest
    neighbour changes, nothing is kept and the exit status is 1.

    Examples: [cyan]zoo export ice_folder -o model.onnx[/], [cyan]zoo export ice_folder -o
    model.pt2[/]
    """
    from zoo.runs.folder import RunFolder
    from zoo.trained import export as exports

    if output is None:
        chosen: Any = format or "onnx"
        name = RunFolder.find(run).path.resolve().name
        output = Path(name + exports.ENDINGS.get(chosen, ".onnx"))
    try:
        done = exports.export(
            run, output, format=format, opset=opset, reporter=Reporter(quiet=quiet)
        )
    except exports.ExportError as error:
        complain(str(error))
        raise Exit(1) from None
    say(f"{done.path} and {exports.beside_of(done.path).name}")
    if not quiet:
        say(f"{done.difference}\n")
        echo(exports.snippet(done), end="")
