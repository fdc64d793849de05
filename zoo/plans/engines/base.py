"""What the scheduler asks of an engine, and what it gives to one."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from zoo.support.checked import Count, checked

Send = Callable[[dict[str, Any]], None]
"""Receives the events of a run, see :mod:`zoo.plans.process`; may be called in any thread."""

GPU = ("auto", "cuda")
"""Values of ``device`` with which a run takes any GPU that is free."""


class Need(NamedTuple):
    """What a run needs: its ``device`` setting, and its number of processes."""

    device: str
    processes: int = 1

    @property
    def wants_gpu(self) -> bool:
        """Whether each of its processes takes any GPU that is free."""
        return self.device in GPU


def _own_variables() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith("ZOO_")}


@dataclass(frozen=True)
class Task:
    """One run, in a form that can be sent to another machine.

    Attributes:
        name: of the run.
        config: its config, as YAML.
        need: its device and processes.
        test: whether it ends by measuring the test classes; otherwise the held-out classes.
        output: the absolute folder of the run folders, which every machine must share.
        cwd: the folder in which the run starts, since paths in its config may be relative.
        path: where its process looks for modules.
        environment: variables of the user that the process must see.
    """

    name: str
    config: str
    need: Need
    test: bool
    output: Path
    cwd: str = field(default_factory=os.getcwd)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    environment: dict[str, str] = field(default_factory=_own_variables)


class Handle(ABC):
    """A run that was started.

    Attributes:
        lost: why it ended through no fault of its own, such as a node that failed; empty otherwise.
            Such a run is started again.
    """

    lost: str = ""

    @abstractmethod
    def poll(self) -> int | None:
        """Send the events that have come; return the exit status, None while it runs."""

    @abstractmethod
    def stop(self, times: int) -> None:
        """Ask it to save and stop; the second time to stop without saving; the third time, kill it.

        It is called again and again with the number of requests so far.
        """

    @abstractmethod
    def close(self) -> str:
        """Release what the run held, after its end; return what it wrote to stderr."""

    def abandon(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave a run alone, since the command fails."""


class Engine(ABC):
    """Carries out runs.

    The arguments of its constructor are what a user may set in the file of resources; ``jobs`` is
    also the option ``--jobs``.

    Args:
        jobs: runs at a time, which the scheduler sees to; None: as many as the engine has room for.
    """

    name: ClassVar[str]

    @checked
    def __init__(self, jobs: Count | None = None) -> None:
        self.jobs = jobs

    def open(self, needs: Sequence[Need]) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for the runs of a plan, of which some may be finished.

        Raises:
            UserError: the engine cannot be used here.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Release what :meth:`open` took."""

    def at_a_time(self, needs: Sequence[Need]) -> int:
        """Return how many of these runs can be carried out at the same time."""
        return min(len(needs), self.jobs or len(needs))

    def has_room(self, need: Need) -> bool:
        """Return whether a run can be started now; a cluster lets it wait in a queue of its own."""
        return True

    @abstractmethod
    def start(self, task: Task, send: Send) -> Handle:
        """Start a run.

        Raises:
            UserError: it cannot be started.
        """

    def find(self, output: Path, name: str, send: Send) -> Handle | None:
        """Return a run that an earlier command started and left behind; None if there is none.

        This is asked again and again of a run that another command has.
        """
        return None
