"""How a command with many runs ends: its tables, or the command that resumes it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from click.exceptions import Exit

from zoo.cli.messages import complain
from zoo.progress import stdout

if TYPE_CHECKING:
    from zoo.plans.running import Outcome


def show_outcome(outcome: Outcome) -> None:
    """Print the choices, the leaderboards and the failures; end with status 1 if any run is left.

    Raises:
        Exit: a run has failed, or is not finished.
    """
    from zoo.plans import contest
    from zoo.tables import leaderboard

    console = stdout()
    for choice in outcome.choices:
        console.print(contest.table(choice))
        console.print()
    for board in leaderboard.boards(outcome.results):
        console.print(leaderboard.to_table(board, console.width))
    for reason, names in outcome.failures().items():
        complain(f"{', '.join(names)}: {reason}")
    if outcome.unfinished:
        count = f"{outcome.unfinished} of {outcome.count} {outcome.what}"
        complain(f"stopped: {count} are not finished; to resume: {resume_command()}", "")
    if outcome.failed or outcome.unfinished:
        raise Exit(1)


@contextmanager
def resumable() -> Iterator[None]:
    """Report, when Ctrl-C ends the block, which command resumes."""
    try:
        yield
    except KeyboardInterrupt as error:
        complain(f"{str(error) or 'stopped'}; to resume: {resume_command()}", "")
        raise Exit(1) from None


def resume_command() -> str:
    """Return the command that resumes where this one stopped."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "the same torchrun command"
    return shlex.join(["zoo", *(a for a in sys.argv[1:] if a not in ("--restart", "--detach"))])
