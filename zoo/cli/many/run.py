"""``zoo run``: train and evaluate one experiment, or many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click
from click.exceptions import Exit

from zoo.cli.many.detached import detached
from zoo.cli.many.outcome import resumable, show_outcome
from zoo.cli.messages import complain
from zoo.cli.options import detach, jobs, on, quiet
from zoo.errors import UserError
from zoo.progress import Reporter, stdout

if TYPE_CHECKING:
    from zoo.config.schema import Config
    from zoo.plans.engines.base import Engine
    from zoo.plans.planning import Plan


@click.command()
@click.argument(
    "arguments",
    nargs=-1,
    metavar="CONFIG|KEY=VALUE",
    help="YAML files or names of shipped configs; and settings to change, such as loss.scale=32.",
)
@click.option("--seeds", metavar="0,1,2", help="Run each config with these seeds.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=VALUE,VALUE",
    help="Run each config with these values; several --sweep give every combination.",
)
@jobs
@on
@detach
@click.option("--dry-run", is_flag=True, help="Only show what would be run, with time and disk.")
@click.option("--restart", is_flag=True, help="Clear the run folders and start from scratch.")
@quiet
def run(
    arguments: tuple[str, ...],
    seeds: str | None,
    sweep: tuple[str, ...],
    jobs: int | None,
    on: str | None,
    detach: bool,
    dry_run: bool,
    restart: bool,
    quiet: bool,
) -> None:
    """Train and evaluate one experiment or many, and print a leaderboard.

    Ctrl-C saves a checkpoint; the same command resumes from it.
    A finished run is not run again: its result is shown.

    Exit status: 0 done, 1 a run was stopped or failed, 2 the input was wrong.

    Examples: [cyan]zoo run ice_glyphs[/],
    [cyan]zoo run configs/ice_glyphs.yaml loss.scale=32 seed=1[/],
    [cyan]zoo run ice_glyphs rll_glyphs --seeds 0,1,2[/],
    [cyan]zoo run ice_glyphs --sweep loss.scale=16,32,64 --dry-run[/]
    """
    with resumable():
        how = _How(jobs, on, detach, dry_run, restart)
        _carry_out(arguments, seeds, sweep, how, Reporter(quiet=quiet))


class _How(NamedTuple):
    """How runs are carried out."""

    jobs: int | None
    on: str | None
    detach: bool
    dry_run: bool
    restart: bool


def _carry_out(
    arguments: Sequence[str],
    seeds: str | None,
    sweep: Sequence[str],
    how: _How,
    reporter: Reporter,
) -> None:
    """Run what the arguments of ``zoo run`` ask for."""
    from zoo.plans import planning
    from zoo.plans.engines import chosen
    from zoo.plans.engines.local import Local

    configs, overrides = planning.sort(arguments)
    alone = len(configs) == 1 and not (sweep or seeds or how.dry_run or how.restart)
    if alone and _show_finished(configs[0], overrides, reporter):
        return
    plan = planning.make(configs, overrides, sweep, seeds)
    engine = chosen.engine(how.on, how.jobs)
    first, *others = plan.jobs
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if others:
            count = len(plan.jobs)
            raise UserError(f"torchrun starts the processes of one run, and these are {count}")
        if how.detach or how.on not in (None, "local"):
            raise UserError("torchrun starts the processes itself; leave out --on and --detach")
        engine = Local()
    if how.dry_run:
        stdout().print(planning.forecast(plan, engine, how.restart))
    elif how.detach:
        pipes = [one for one in configs if Path(one).exists() and not Path(one).is_file()]
        if pipes:
            raise UserError(f"--detach: {pipes[0]} cannot be read again; write it to a file")
        if not reporter.quiet:
            reporter.console.print(planning.table(plan))
        detached(engine, [job.need for job in plan.jobs], first.config)
    elif others or engine.name != "local":
        _run_many(plan, engine, how.restart, reporter)
    else:
        result = _run(first.config, overrides, how.restart, reporter)
        if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, the first
            _show_result(first.config.output, result, reporter.quiet)


def _show_finished(source: str, overrides: list[str], reporter: Reporter) -> bool:
    """Show the result of a finished run without torch, which takes seconds to import.

    Returns:
        whether it was shown; not if the run is unfinished or finding it needs torch.
    """
    from zoo.config import loading
    from zoo.runs.folder import RunFolder

    checked = loading.guess(source, overrides)
    if checked is None:
        return False
    folder = RunFolder.of(checked)
    if not folder.finished:
        return False
    result = folder.result(checked)
    reporter.say(folder.finished_message)
    _show_result(checked.output, result, reporter.quiet)
    return True


def _show_result(output: str, result: dict[str, Any], quiet: bool) -> None:
    """Print the leaderboards that have a result, or its row alone."""
    from zoo.tables import leaderboard

    console = stdout()
    for board in leaderboard.boards([result] if quiet else leaderboard.load(output)):
        if any(result["run"] == r["run"] for row in board.rows for r in row.results):
            console.print(leaderboard.to_table(board, console.width, highlight=result["run"]))


def _run(
    checked: Config, overrides: list[str], restart: bool, reporter: Reporter
) -> dict[str, Any]:
    """Run an experiment; report what ended it before its last iteration."""
    from zoo import runner
    from zoo.support import environment
    from zoo.training import loop
    from zoo.training.step import DivergedError

    environment.keep_freed_memory()
    try:
        return runner.run(checked, overrides, restart=restart, reporter=reporter)
    except loop.InterruptedRunError as error:
        raise KeyboardInterrupt(str(error)) from None
    except DivergedError as error:
        complain(str(error))
        raise Exit(1) from None


def _run_many(plan: Plan, engine: Engine, restart: bool, reporter: Reporter) -> None:
    """Carry out a plan; print the leaderboard of its runs and the failures."""
    from zoo.plans import planning, running

    if restart:
        planning.forget(plan)
    if not reporter.quiet:
        reporter.console.print(planning.table(plan))
    show_outcome(running.run(plan, engine, reporter))
