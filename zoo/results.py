"""The run folder: what is written, when, and how it is read back.

Every file is written whole or not at all, so that whatever kills a run leaves either the old one or
the new one. ``result.json`` comes last: a folder that has one is a finished run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from zoo._files import replace_file
from zoo.errors import UserError

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CHECKPOINT = "checkpoint.pt"
RANKS = "ranks.npy"


class RunFolder:
    """The folder of one run: ``<output>/<config>-<digest>-s<seed>``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def finished(self) -> bool:
        """Whether the run has ended and left its result."""
        return (self.path / RESULT).is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep every other process from running in it.

        Raises:
            UserError: if the folder cannot be written or another process has it.
        """
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise UserError(f"{self.path}: another process is at this run") from error
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from error
        try:
            for left_over in self.path.glob(".*.tmp"):  # of a process that was killed
                left_over.unlink()
            yield
        finally:
            lock.release()

    def clear(self) -> None:
        """Forget the run that is in the folder."""
        for name in (RESULT, CHECKPOINT, METRICS, RANKS):
            (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all.

        Raises:
            UserError: if that is impossible: no space, no permission.
        """
        try:
            replace_file(self.path / name, lambda file: file.write(data))
        except OSError as error:
            raise UserError(f"{self.path / name}: cannot be written ({error.strerror})") from error

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; it loads with ``weights_only=True``."""
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.write(CHECKPOINT, buffer.getvalue())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the checkpoint, on the CPU; None where there is none.

        Raises:
            UserError: if the file is there but no checkpoint.
        """
        import torch

        path = self.path / CHECKPOINT
        if not path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UserError(
                f"{path}: not a checkpoint that can be read ({type(error).__name__}); "
                "start again with --restart"
            ) from error
        return state

    def append(self, record: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics; a last line that was cut short is left out."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return records

    def rewind(self, iteration: int) -> None:
        """Drop the metrics after an iteration: they are about to be measured again."""
        kept = [json.dumps(r) + "\n" for r in self.metrics() if r["iteration"] <= iteration]
        self.write(METRICS, "".join(kept).encode())

    def finish(self, result: dict[str, Any], ranks: Any) -> None:
        """Write the ranks and then the result, which marks the run as finished."""
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, ranks)
        self.write(RANKS, buffer.getvalue())
        self.write(RESULT, (json.dumps(result, indent=2) + "\n").encode())

    def result(self) -> dict[str, Any]:
        """Return what a finished run left.

        Raises:
            UserError: if the file is no result.
        """
        path = self.path / RESULT
        try:
            result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            _ = result["dataset"]["name"], result["recall"], result["seed"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not the result of a run ({error!r})") from error
        return result
