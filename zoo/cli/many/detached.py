"""A command in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.many.outcome import resume_command
from zoo.cli.messages import say
from zoo.support.files import writing

if TYPE_CHECKING:
    from zoo.config.schema import Config
    from zoo.plans.engines.base import Engine, Need

_DETACH = "--detach"


def detached(engine: Engine, needs: Sequence[Need], config: Config) -> None:
    """Give the same command again in the background, where it outlives the terminal.

    Args:
        engine: is opened first, to see whether it can be.
        needs: what the runs need of it.
        config: one of the runs; what the command prints goes to a file in its output folder.
    """
    engine.open(needs)
    engine.close()
    log = (
        Path(config.output)
        / f"detached-{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    )
    arguments = [a for a in sys.argv[1:] if a != _DETACH]
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("xb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "zoo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
    say(f"running in the background as process {process.pid}; its output is in {log}")
    say(f"to let it save and stop: kill {process.pid}; to see its results: {resume_command()}")
