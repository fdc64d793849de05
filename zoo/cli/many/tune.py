"""``zoo tune``: search settings on held-out classes."""

from __future__ import annotations

import os

import rich_click as click

from zoo.cli.many.detached import detached
from zoo.cli.many.outcome import resumable, show_outcome
from zoo.cli.options import detach, jobs, on, quiet
from zoo.errors import UserError
from zoo.progress import Reporter


@click.command()
@click.argument(
    "arguments",
    nargs=-1,
    metavar="CONFIG|KEY=VALUE",
    help="A YAML file or the name of a shipped config; and settings to change.",
)
@click.option(
    "--space",
    multiple=True,
    metavar="KEY=VALUES",
    help="A setting to search: 0.1..2, log:1..100, or a,b,c. Several are searched together.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="N",
    help="Settings to try, with those of an earlier search of the same space.",
)
@click.option("--seeds", metavar="0,1,2", help="Run each trial with these seeds.")
@click.option("--no-pruning", is_flag=True, help="Train every trial to its end.")
@jobs
@on
@detach
@quiet
def tune(
    arguments: tuple[str, ...],
    space: tuple[str, ...],
    trials: int,
    seeds: str | None,
    no_pruning: bool,
    jobs: int | None,
    on: str | None,
    detach: bool,
    quiet: bool,
) -> None:
    """Search settings on held-out classes, then measure the best ones on the test classes, once.

    Optuna suggests the settings. A trial that is worse than the median of the others so far is
    stopped. The same command continues a search that was stopped; several commands share it.

    Unless the config sets them, 30 % of the training classes are held out, and measured five times
    during each run.

    Exit status: 0 done, 1 the search was stopped or a run failed, 2 the input was wrong.

    Example: [cyan]zoo tune ice_glyphs --space loss.scale=log:1..100 --trials 20[/]
    """
    from zoo.plans import planning
    from zoo.plans.engines import chosen
    from zoo.plans.tune import search as searches
    from zoo.plans.tune.trials import tune as carry_out

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("torchrun is for one run; give zoo tune alone, with train.processes")
    configs, overrides = planning.sort(arguments)
    if len(configs) > 1:
        raise UserError(f"zoo tune takes one config, and these are {len(configs)}")
    search = searches.make(configs[0], overrides, space, trials, seeds, not no_pruning)
    engine = chosen.engine(on, jobs)
    if detach:
        detached(engine, [search.need], search.base)
        return
    with resumable():
        show_outcome(carry_out(search, engine, Reporter(quiet=quiet)))
