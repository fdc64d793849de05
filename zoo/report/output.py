"""The folder of a report: files of an earlier report are replaced, other files never touched."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo import __version__
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.support.files import alone, read_json, writing

MANIFEST, LOCK = "report.json", ".report.json.lock"
_MADE_BY = "zoo report"
_LEFT = re.compile(r"\.[0-9a-f]{32}\.tmp")  # left by a report that was killed


@contextmanager
def opened(root: Path, reporter: Reporter) -> Iterator[Output]:
    """Open the folder of a report for writing; wait for another process that writes it.

    Raises:
        UserError: if the folder has files and is not a report, or cannot be written.
    """
    _noted(root)  # before a lock is put into a folder that is not a report
    with alone(root / MANIFEST, reporter):
        yield Output(root)


class Output:
    """Writes the files of a report, and lists them in ``report.json``.

    A name is listed before its file is written, so that the next report knows its files even if the
    process is killed.

    Args:
        root: the folder; it is created if it is missing. The caller holds its lock.

    Raises:
        UserError: if the folder has files and is not a report, or cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._noted = _noted(root)
        self._claimed: set[str] = set()
        self._sweep()
        self._write(MANIFEST, self._manifest(self._noted))

    def claim(self, names: Iterable[str]) -> None:
        """List the names of files that are about to be written.

        Raises:
            UserError: if a file that is not of the report has such a name.
        """
        names = set(names)
        for name in names - self._noted:
            if os.path.lexists(self.root / name):
                raise UserError(
                    f"{self.root / name}: this file is not of the report, but in its way; move it"
                )
        self._claimed |= names
        if not names <= self._noted:
            self._noted |= names
            self._write(MANIFEST, self._manifest(self._noted))

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically; list its name first if it is not listed yet."""
        if name not in self._claimed:
            self.claim([name])
        self._write(name, data)

    def has(self, name: str) -> bool:
        """Return whether an earlier report wrote a file, which can then be reused."""
        return name in self._noted and (self.root / name).is_file()

    def finish(self) -> None:
        """Remove files of an earlier report that this one does not have."""
        for name in self._noted - self._claimed:
            path = self.root / name
            with writing(path):
                path.unlink(missing_ok=True)
                _remove_empty(path.parent, self.root)
        self._noted = self._claimed
        self._write(MANIFEST, self._manifest(self._claimed))

    def _sweep(self) -> None:
        """Remove temporary files of a report that was killed."""
        for folder in {(self.root / name).parent for name in (MANIFEST, *self._noted)}:
            for path in folder.iterdir() if folder.is_dir() else ():
                if _LEFT.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def _manifest(self, names: Iterable[str]) -> bytes:
        content = {"made_by": _MADE_BY, "version": __version__, "files": sorted(names)}
        return (json.dumps(content, indent=0) + "\n").encode()

    def _write(self, name: str, data: bytes) -> None:
        path = self.root / name
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


def _noted(root: Path) -> set[str]:
    """Return the files that an earlier report listed."""
    try:
        if not os.path.lexists(root) or (root.is_dir() and _is_empty(root)):
            return set()
        content = read_json(root / MANIFEST)
        if content["made_by"] == _MADE_BY:
            return {name for name in content["files"] if _is_inside(name, root)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{str(root)!r}: has other files than a report; give an empty or a new folder")


def _is_empty(root: Path) -> bool:
    """Return whether a folder has only the lock and temporary files of a report."""
    return all(path.name == LOCK or _LEFT.fullmatch(path.name) for path in root.iterdir())


def _is_inside(name: object, root: Path) -> bool:
    """Return whether a listed name, which may have been edited, is a file inside the folder."""
    if not isinstance(name, str) or name == MANIFEST or "\0" in name:
        return False
    return (root / name).parent.resolve().is_relative_to(root.resolve())


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
