"""``zoo run``: train and evaluate one experiment, or many."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit

from zoo.cli.messages import complain
from zoo.errors import UserError
from zoo.progress import Reporter, stdout

if TYPE_CHECKING:
    from zoo.config.schema import Config
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
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at a time; by default one on each GPU, or one on the CPU.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be run, with time and disk.")
@click.option("--restart", is_flag=True, help="Clear the run folders and start from scratch.")
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def run(
    arguments: tuple[str, ...],
    seeds: str | None,
    sweep: tuple[str, ...],
    jobs: int | None,
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
    try:
        _carry_out(arguments, seeds, sweep, jobs, dry_run, restart, Reporter(quiet=quiet))
    except KeyboardInterrupt as error:
        complain(f"{str(error) or 'stopped'}; to resume: {_resume_command()}", "")
        raise Exit(1) from None


def _carry_out(
    arguments: Sequence[str],
    seeds: str | None,
    sweep: Sequence[str],
    at_a_time: int | None,
    dry_run: bool,
    restart: bool,
    reporter: Reporter,
) -> None:
    """Run what the arguments of ``zoo run`` ask for."""
    from zoo.plans import planning

    configs, overrides = planning.sort(arguments)
    alone = len(configs) == 1 and not (sweep or seeds or dry_run or restart)
    if alone and _show_finished(configs[0], overrides, reporter):
        return
    plan = planning.make(configs, overrides, sweep, seeds)
    first, *others = plan.jobs
    if others and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError(f"torchrun starts the processes of one run, and these are {len(plan.jobs)}")
    if dry_run:
        stdout().print(planning.forecast(plan, at_a_time, restart))
    elif others:
        _run_many(plan, at_a_time, restart, reporter)
    else:
        result = _run(first.config, overrides, restart, reporter)
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


def _run_many(plan: Plan, at_a_time: int | None, restart: bool, reporter: Reporter) -> None:
    """Carry out a plan; print the leaderboard of its runs and the failures."""
    from zoo.plans import contest, planning
    from zoo.tables import leaderboard

    if restart:
        planning.forget(plan)
    if not reporter.quiet:
        reporter.console.print(planning.table(plan))
    outcome = planning.run(plan, at_a_time, reporter)
    console = stdout()
    for choice in outcome.choices:
        console.print(contest.table(choice))
        console.print()
    for board in leaderboard.boards(outcome.results):
        console.print(leaderboard.to_table(board, console.width))
    for reason, names in outcome.failures().items():
        complain(f"{', '.join(names)}: {reason}")
    if outcome.unfinished:
        count = f"{outcome.unfinished} of {len(plan.jobs)} runs"
        complain(f"stopped: {count} are not finished; to resume: {_resume_command()}", "")
    if outcome.failed or outcome.unfinished:
        raise Exit(1)


def _resume_command() -> str:
    """Return the command that resumes where this one stopped."""
    return shlex.join(["zoo", *(a for a in sys.argv[1:] if a != "--restart")])
