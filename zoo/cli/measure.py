"""``zoo measure``: measure finished runs by more than Recall@K."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.table import Table

from zoo.cli.options import processes
from zoo.errors import UserError
from zoo.progress import Reporter, stdout

if TYPE_CHECKING:
    from zoo.runs.folder import RunFolder


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", help="Runs, or experiments.")
@click.option(
    "--measures",
    default="map_at_r,r_precision",
    show_default=True,
    metavar="NAME,NAME",
    help="Some of map_at_r, r_precision, nmi, ami.",
)
@processes
def measure(runs: tuple[str, ...], measures: str, processes: int) -> None:
    """Measure finished runs by more than Recall@K: MAP@R, R-precision, NMI, AMI.

    The test images are embedded, unless their embeddings are kept already. The values are added to
    the result of the run and not computed again.

    With evaluate.measures in its config, a run does the same at its end.

    Examples: [cyan]zoo measure ice_glyphs[/],
    [cyan]zoo measure runs/ice_glyphs-* --measures map_at_r,nmi[/]
    """
    from zoo.evaluation.names import MEASURES, check_measures
    from zoo.runs import experiments

    given = [name.strip() for name in measures.split(",")]
    if not all(given):
        known = ",".join(MEASURES)
        raise UserError(f"--measures: must be names of {known}, not {measures!r}")
    names = check_measures(given)
    folders = [folder for text in runs for folder in experiments.find(text)]
    found = [(folder, _measured(folder, names, processes)) for folder in folders]
    stdout().print(_table(found, names))


def _measured(folder: RunFolder, names: list[str], processes: int) -> dict[str, Any]:
    """Return the result of a run with these measures in it, computing those that are missing."""
    result = folder.result()
    known: dict[str, float] = result.get("measures", {})
    missing = [name for name in names if name not in known]
    if not missing:
        return result
    from zoo.evaluation import measures
    from zoo.trained import network

    reporter = Reporter()
    model = network.load(folder.path)
    found = model.embed_test(reporter, processes=processes)
    reporter.say(f"{folder.path}: {', '.join(missing)}")
    if processes > 1:
        from zoo.trained.processes import measure_all

        values, clustering = measure_all(processes, missing, *found, model.space, reporter)
    else:
        values, clustering = measures.measure(missing, *found, space=model.space)
    try:
        folder.add_measures(values, {"clustering": clustering} if clustering else {})
    except UserError as error:
        warnings.warn(f"the measures cannot be saved: {error}", stacklevel=2)
    return {**result, "measures": {**known, **values}}


def _table(found: list[tuple[RunFolder, dict[str, Any]]], names: list[str]) -> Table:
    from zoo.evaluation.names import MEASURES
    from zoo.support.text import printable

    table = Table(box=None, pad_edge=False, title_justify="left", title_style="bold")
    table.title = "In percent"
    table.add_column("run", overflow="fold")
    for head in ("R@1", *(MEASURES[name] for name in names)):
        table.add_column(head, justify="right")
    for folder, result in found:
        first = result["recall"].get("1")
        values = [first, *(result["measures"][name] for name in names)]
        shown = ["–" if value is None else f"{100 * value:.2f}" for value in values]
        table.add_row(printable(folder.path.resolve().name), *shown)
    return table
