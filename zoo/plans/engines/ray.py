"""Runs on a Ray cluster: each has an actor on one of the nodes, which starts its process."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from zoo.errors import UserError
from zoo.plans.engines.attendant import Attendant, News
from zoo.plans.engines.base import Engine, Handle, Need, Send, Task
from zoo.plans.engines.resources import resources_file
from zoo.support.checked import Count, checked
from zoo.support.optional import installed
from zoo.support.text import counted

_PATIENCE = 60.0  # seconds that a node may be out of reach before its run is taken for lost


class Ray(Engine):
    """Runs on the nodes of a Ray cluster, which must share a file system.

    The runs stop when the command ends. If a node is lost, its runs start again on others, from
    their last checkpoints.

    Args:
        jobs: runs at a time; by default as many as the cluster has room for.
        address: of the cluster; "auto" is the one that this machine belongs to.
        cpus: CPUs for each process of a run.
        gpus: GPUs for each process of a run with ``device: auto`` or ``cuda``; by default 1 if the
            cluster has any. A fraction, such as 0.5, lets runs share a GPU.
        memory: GB of memory for each process; by default Ray does not count it.
    """

    name = "ray"

    @checked
    def __init__(
        self,
        jobs: Count | None = None,
        address: str = "auto",
        cpus: Count = 1,
        gpus: float | None = None,
        memory: float | None = None,
    ) -> None:
        super().__init__(jobs)
        for name, value in (("gpus", gpus), ("memory", memory)):
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{name} must be 0 or more, not {value}")
        self._address, self._cpus, self._gpus, self._memory = address, cpus, gpus, memory
        self._ray: Any = None

    def open(self, needs: Sequence[Need]) -> None:
        """Connect to the cluster; refuse runs that none of its nodes has room for."""
        self._ray = installed("ray", "engine ray", "ray")
        try:
            _reach(self._address)
            self._ray.init(self._address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError) as error:
            raise UserError(
                f"engine ray: no cluster at {self._address} ({error}); start one with "
                "`ray start --head`, or set its address"
            ) from None
        except RuntimeError as error:  # such as another version of Ray or Python there
            words = " ".join(str(error).split())
            raise UserError(f"engine ray: the cluster at {self._address}: {words}") from None
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if self._gpus is None:
            self._gpus = 1.0 if any(node.get("GPU") for node in nodes) else 0.0
        for need in set(needs):
            wanted = self._resources(need)
            if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
                words = ", ".join(f"{key} {value:g}" for key, value in wanted.items())
                raise UserError(
                    f"engine ray: no node of the cluster has {words} for a run of "
                    f"{counted(need.processes, 'process', 'processes')}; lower what "
                    f"{resources_file()} says, or train.processes"
                )

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

    def start(self, task: Task, send: Send) -> Handle:
        """Create the actor of a run."""
        wanted = self._resources(task.need)
        cpus, gpus = wanted.pop("CPU"), wanted.pop("GPU", 0)
        remote = self._ray.remote(Attendant).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, **wanted
        )
        return _Actor(self._ray, remote.remote(task, int(cpus)), send)

    def _resources(self, need: Need) -> dict[str, float]:
        """Return what a run needs, as Ray names it."""
        found = {"CPU": float(self._cpus), "GPU": self._gpus or 0.0, "memory": self._memory or 0.0}
        if not need.wants_gpu:
            found["GPU"] = 0.0
        found["memory"] *= 1e9
        return {key: need.processes * value for key, value in found.items() if value}


class _Actor(Handle):
    """A run that an actor looks after."""

    def __init__(self, ray: Any, actor: Any, send: Send) -> None:
        self._ray, self._actor, self._send = ray, actor, send
        self._asked = 0
        self._on_a_node = False
        self._unreachable: float | None = None
        self._log = ""
        self._answer = actor.report.remote()
        send({"state": "queued"})

    def poll(self) -> int | None:
        """Ask the actor again once it has answered."""
        report = self._report()
        if report is None:
            return None
        for event in report.events:
            self._send(event)
        self._log = report.log
        return report.status

    def stop(self, times: int) -> None:
        """Ask the actor; one that is not on a node yet is killed."""
        if times <= self._asked:
            return
        self._asked = times
        if times > 2 or not self._on_a_node:
            self._ray.kill(self._actor)
        else:
            self._actor.stop.remote(times)

    def close(self) -> str:
        """Remove the actor."""
        with suppress(Exception):
            self._ray.kill(self._actor)
        return self._log

    def abandon(self) -> None:
        """Remove the actor; its process saves and stops."""
        self.close()

    def _report(self) -> News | None:
        """Return the actor's answer; None if there is none yet."""
        errors = self._ray.exceptions
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return None
        try:
            report: News = self._ray.get(self._answer)
        except errors.ActorUnavailableError:
            self._unreachable = self._unreachable or time.monotonic()
            if time.monotonic() - self._unreachable > _PATIENCE:
                return self._gone("its node could not be reached")
            report = News([])
        except errors.RayActorError:
            return self._gone("its node, or the process that looked after it, was lost")
        else:
            self._unreachable, self._on_a_node = None, True
        if report.status is None:
            self._answer = self._actor.report.remote()
        return report

    def _gone(self, why: str) -> News:
        """Return how a run ended whose actor is gone: killed on request, or lost."""
        if self._asked:
            return News([{"stopped": "stopped"}], 1)
        self.lost = why
        return News([], 1)


def _reach(address: str) -> None:
    """Raise an OSError if nobody listens at host:port: Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=10).close()
