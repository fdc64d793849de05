"""The run folder: what is written, when, and how it is read back.

Every file is written whole or not at all, so a run that is killed leaves either the old file or the
new one. ``result.json`` comes last: a folder that has one is a finished run. A run that competes
with others on held-out classes ends with ``validation.json``, unless it is chosen.

Both records hold the digests of the files that belong to them, and every file is compared with its
digest when it is read, see :mod:`zoo.runs.identity`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import ValidationError

from zoo.config import loading
from zoo.config.schema import Config
from zoo.errors import UserError, did_you_mean, one_of
from zoo.runs import checkpoint, identity, metrics, queries, records
from zoo.runs.records import CandidateRecord, ResultRecord
from zoo.support import yaml
from zoo.support.checked import checked
from zoo.support.files import (
    check_regular,
    is_run,
    replace_file,
    writing,
)
from zoo.support.text import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
RESULT = "result.json"
VALIDATION = "validation.json"
CHECKPOINT = "checkpoint.pt"
RANKS = "ranks.npy"
LABELS = "labels.npy"  # the classes of the same queries
EMBEDDINGS = "embeddings.npz"  # of the test split, if a command needed them
LOCK = ".lock"
LOG = "log.txt"  # output of a process that failed
_BELONGING = (CONFIG, CHECKPOINT, RANKS, LABELS)  # files that belong to a result
_FILES = (RESULT, VALIDATION, CHECKPOINT, METRICS, RANKS, LABELS, EMBEDDINGS, LOG)

_FULL = "make room and run again, or set output=FOLDER"


class BusyError(UserError):
    """Another process is working on the run."""


class RunFolder:
    """The folder of one run: ``<output>/<config>-<digest>-s<seed>``."""

    @checked
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._written: dict[str, str] = {}  # name -> digest, of files that belong to a record

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return printable(f"<RunFolder {self.path}: {state}>")

    @classmethod
    @checked
    def of(cls, config: Config) -> RunFolder:
        """Return the folder of a config's run."""
        return cls(Path(config.output) / config.run_name())

    @classmethod
    @checked
    def find(cls, run: str | Path, directory: str | Path = "runs") -> RunFolder:
        """Return the folder of a run, from any name that identifies it.

        Args:
            run: a run folder, the name of one in ``directory``, or the beginning of one name there,
                such as ``"ice_glyphs"``.
            directory: the folder in which names are looked up.

        Raises:
            UserError: if there is no such run, or several.
        """
        for place in (Path(run), Path(directory) / run):
            # a path's own is_file raises for a name too long, or with a null byte
            if is_run(place) or os.path.isfile(place / RESULT):  # noqa: PTH113
                return cls(place)
        try:
            names = sorted(path.parent.name for path in Path(directory).glob(f"*/{CONFIG}"))
        except (OSError, ValueError) as error:  # a name too long, or with a null byte
            raise UserError(
                printable(f"{str(directory)[:200]!r}: cannot be read ({error})")
            ) from None
        begun = [name for name in names if name.startswith(str(run))] if str(run) else []
        if len(begun) == 1:
            return cls(Path(directory) / begun[0])
        if begun:
            raise UserError(printable(f"{run} may be {one_of(begun)}; say which"))
        raise UserError(printable(_no_run(str(run), str(directory), names)))

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return (self.path / RESULT).is_file()

    @property
    def validated(self) -> bool:
        """Whether the folder has a record of held-out classes, by which the run may be chosen.

        A finished run may have it in its result instead, see :meth:`candidate`.
        """
        return (self.path / VALIDATION).is_file()

    @property
    def finished_message(self) -> str:
        """The message that is printed instead of running it again."""
        return f"{self.path} is finished; its result (--restart deletes it and trains again):"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep every other process from running in it.

        Raises:
            BusyError: if another process has it.
            UserError: if the folder cannot be written, or something that is not a file is in the
                place of a file of the run.
        """
        with writing(self.path, full=_FULL):
            try:
                lock = FileLock(self.path / LOCK, timeout=0)
                self.path.mkdir(parents=True, exist_ok=True)
                lock.acquire()
            except Timeout as error:
                raise BusyError(f"{self.path}: another process is working on this run") from error
        try:
            self._check_places()
            for left_over in self.path.glob(".*.tmp"):  # from a process that was killed
                if left_over.is_file():
                    with writing(left_over):
                        left_over.unlink()
            yield
        finally:
            self._drop_if_empty()
            lock.release()

    def _drop_if_empty(self) -> None:
        """Remove the folder of a run that could not begin: it would look like one that did.

        A run that fails in its first step leaves only a config and empty metrics.
        """
        with suppress(OSError):
            sizes = {path.name: path.stat().st_size for path in self.path.iterdir()}
            if sizes.keys() <= {CONFIG, METRICS, LOCK} and not sizes.get(METRICS):
                for name in sorted(sizes, reverse=True):  # the lock last
                    (self.path / name).unlink()
                self.path.rmdir()

    def _check_places(self) -> None:
        """Refuse at the start what would prevent writing a file after hours of training."""
        for path in (self.path / name for name in (CONFIG, *_FILES)):
            if os.path.lexists(path) and not path.is_file():
                what = "a folder" if path.is_dir() else "something else"
                raise UserError(
                    f"{path}: the run has a file of that name, but this is {what}; move it away"
                )

    def clear(self) -> None:
        """Delete the run in the folder, but not its config; raise a UserError if that fails."""
        self._written.clear()
        for name in _FILES:
            with writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or raise a UserError; remember its digest if a record will hold it."""
        if name in _BELONGING:
            self._written[name] = hashlib.sha256(data).hexdigest()
            self._forget(name, self._written[name])
        with writing(self.path / name, full=_FULL):
            replace_file(self.path / name, lambda file: file.write(data))

    def _forget(self, name: str, digest: str) -> None:
        """Remove the digest of a file from the record of held-out classes, if the file changes.

        This happens if a lost network is trained again, or a chosen run is measured on another
        device.
        """
        if not self.validated:
            return
        record = records.read(self.path / VALIDATION, CandidateRecord)
        files: dict[str, str] = record.get(identity.FILES, {})
        if files.get(name, digest) != digest:
            others = {other: kept for other, kept in files.items() if other != name}
            self._write_record(VALIDATION, {**record, identity.FILES: others})

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; it loads with ``weights_only=True``."""
        self.write(CHECKPOINT, checkpoint.encoded(state))

    def load_checkpoint(self, mmap: bool = False) -> dict[str, Any] | None:
        """Return the checkpoint, on the CPU; None if there is none.

        Args:
            mmap: read only the parts that are used, without a check for damage.

        Raises:
            UserError: if the file is not a checkpoint, or no longer what was written.
        """
        state = checkpoint.read(self.path / CHECKPOINT, mmap)
        if state is not None and not mmap:
            self._check_digest(CHECKPOINT)
        return state

    def reached(self) -> int:
        """Return the checkpoint's iteration; 0 without one. Raise a UserError if it is damaged."""
        state = self.load_checkpoint(mmap=True)
        return 0 if state is None else int(state["iteration"])

    def append(self, record: dict[str, Any]) -> None:
        """Append a line to the metrics; raise a UserError if the file cannot be written."""
        path = self.path / METRICS
        with writing(path, full=_FULL), path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics, without those that are damaged or incomplete."""
        return metrics.read(self.path / METRICS)

    def rewind(self, iteration: int) -> None:
        """Drop the metrics after an iteration: they are about to be measured again."""
        kept = [json.dumps(r) + "\n" for r in self.metrics() if r["iteration"] <= iteration]
        self.write(METRICS, "".join(kept).encode())

    def network(self, config: Config) -> dict[str, Any] | None:
        """Return the checkpoint, which must be of this config; None if there is none.

        Raises:
            UserError: the checkpoint is damaged, or of another run.
        """
        state = checkpoint.read(self.path / CHECKPOINT)
        if state is None:
            return None
        of, mine = state.get("run"), identity.of_run(config)
        if isinstance(of, dict) and not identity.same_run(of, mine):  # 0.1.0 kept none
            raise self._of_another(CHECKPOINT, of.get("name"), mine["name"])
        self._check_digest(CHECKPOINT)
        return state

    def config(self) -> Config:
        """Return the config in the folder, to use the network; no component is looked up.

        Raises:
            UserError: the file cannot be read, or is not of this run.
        """
        path = self.path / CONFIG
        try:
            check_regular(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        self._check_digest(CONFIG)
        return loading.load_run(path)

    def finish(self, result: dict[str, Any], ranks: Any, labels: Any) -> dict[str, Any]:
        """Write ranks and labels of the queries, then the result, which marks the run as finished.

        Returns the result as it was written, with the digests of all files that belong to it.
        """
        import numpy as np

        for name, array in ((RANKS, ranks), (LABELS, labels)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            self.write(name, buffer.getvalue())
        return self._write_record(RESULT, self._with_digests(result, _BELONGING))

    def ranks(self) -> NDArray[np.int32]:
        """Return r(q) of each test query of a finished run, see :mod:`zoo.evaluate`.

        Raises:
            UserError: if the file is missing or invalid.
        """
        self._check_digest(RANKS)
        return queries.ranks(self.path / RANKS)

    def labels(self) -> NDArray[np.int64] | None:
        """Return the class of each test query; None for a run that did not keep them.

        Raises:
            UserError: if the file is invalid.
        """
        self._check_digest(LABELS)
        return queries.labels(self.path / LABELS)

    def add_measures(self, measures: dict[str, float], how: dict[str, Any]) -> None:
        """Add measures to the result that were made after the run ended.

        Args:
            measures: value by name.
            how: how they were measured; goes beside them into the result.

        Raises:
            UserError: if another process is working on the run, or it is not finished.
        """
        with self.locked():
            result = self.result()
            together = {**result.get("measures", {}), **measures}
            self._write_record(RESULT, {**result, "measures": together, **how})

    def finish_validation(self, candidate: dict[str, Any]) -> dict[str, Any]:
        """Write the results on held-out classes; the run then waits to be chosen.

        When the run is chosen, its config is written again, perhaps for another device; the record
        then no longer holds the digest of the config.
        """
        return self._write_record(VALIDATION, self._with_digests(candidate, [CONFIG, CHECKPOINT]))

    def select(self, selection: dict[str, Any]) -> None:
        """Record that the run was chosen, and among which settings.

        Raises:
            UserError: if another process is working on it, or the file is not the record of a run.
        """
        with self.locked():
            for name, model in ((VALIDATION, CandidateRecord), (RESULT, ResultRecord)):
                record = (
                    records.read(self.path / name, model) if (self.path / name).is_file() else None
                )
                if record is not None and record.get("selection") != selection:
                    self._write_record(name, {**record, "selection": selection})

    def settings(self) -> dict[str, Any]:
        """Return the settings of the config beside the result; empty if it cannot be read.

        For old results, which do not hold their settings.
        """
        tree = yaml.read(self.path / CONFIG, CONFIG, [])
        if tree is None or not isinstance(tree.value, dict):
            return {}
        try:
            return Config.model_validate(tree.plain()).settings()
        except ValidationError:  # from a version with other keys
            return {}

    def result(self, config: Config | None = None) -> dict[str, Any]:
        """Return the result of a finished run.

        Args:
            config: of the expected run; by default any run is accepted.

        Raises:
            UserError: if the file is not a result, not what the run wrote, or of another run.
        """
        result = records.read(self.path / RESULT, ResultRecord)
        self._compare(CONFIG, result)
        self._check_run(RESULT, result, config)
        return result

    def candidate(self, config: Config | None = None) -> dict[str, Any]:
        """Return the results of a run on held-out classes, whether it is finished or not.

        Args:
            config: of the expected run; by default any run is accepted.

        Raises:
            UserError: if there are none, or they are of another run.
        """
        if self.finished:
            self.result(config)
            return records.read(self.path / RESULT, CandidateRecord)
        candidate = records.read(self.path / VALIDATION, CandidateRecord)
        self._check_run(VALIDATION, candidate, config)
        self._compare(CONFIG, candidate)
        if candidate.get(identity.FILES):
            self._check_run(VALIDATION, candidate, self.config())
        return candidate

    def _check_run(self, name: str, record: dict[str, Any], config: Config | None) -> None:
        """Refuse a record of another run than the expected one."""
        mine = config and identity.of_run(config)
        if mine and not identity.same_run(record, mine):
            raise self._of_another(name, record["run"], mine["name"])

    def _of_another(self, name: str, found: object, expected: str) -> UserError:
        return UserError(
            printable(
                f"{self.path / name}: of the run {found}, but the folder is of {expected}; "
                f"{identity.WHAT_TO_DO}"
            )
        )

    def _with_digests(self, record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return a record with the digests of its files, as written if that was done here."""
        found = identity.digests(self.path, [name for name in names if name not in self._written])
        written = {name: self._written[name] for name in names if name in self._written}
        return {**record, identity.FILES: found | written}

    def _check_digest(self, name: str) -> None:
        """Raise a UserError if a file does not belong to the record of the run."""
        for record, model in ((RESULT, ResultRecord), (VALIDATION, CandidateRecord)):
            if (self.path / record).is_file():
                self._compare(name, records.read(self.path / record, model))
                return

    def _compare(self, name: str, record: dict[str, Any]) -> None:
        """Compare a file, if it exists, with its digest in a record."""
        expected = record.get(identity.FILES, {}).get(name)
        if expected is None or not os.path.lexists(self.path / name):
            return
        try:
            found = identity.digests(self.path, [name]).get(name)
        except OSError as error:
            message = f"{self.path / name}: cannot be read ({error.strerror})"
            raise UserError(printable(message)) from error
        if found != expected:
            raise UserError(
                printable(
                    f"{self.path / name}: not the file that the run wrote: damaged, edited or of "
                    f"another run than {record['run']}; {identity.WHAT_TO_DO}"
                )
            )

    def _write_record(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        record = identity.seal(record)
        self.write(name, (json.dumps(record, indent=2) + "\n").encode())
        return record


def _no_run(run: str, directory: str, names: list[str]) -> str:
    """Return the message about a run that does not exist."""
    run = run or "''"
    if names:
        near = did_you_mean(run, names)
        there = near or f"; there are {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        return f"{run}: not a run folder, and not the name of one in {directory}{there}"
    return f"{run}: not a run folder; zoo run makes one in {directory} and prints its name"
