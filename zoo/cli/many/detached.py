"""A command in the background."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from zoo.cli.many.outcome import resume_command
from zoo.cli.messages import say
from zoo.support.files import writing

_DETACH = "--detach"


def detached(output: str) -> None:
    """Give the same command again in the background, where it outlives the terminal.

    Args:
        output: the folder of the runs; what the command prints goes to a file there.
    """
    log = Path(output) / f"detached-{time.strftime('%Y%m%d-%H%M%S')}.log"
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
