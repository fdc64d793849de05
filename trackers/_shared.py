"""What trackers share: packages that need not be installed, and settings as text."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import UserError
from zoo.support.files import read_text, replace_file

_MOST = 1000  # characters of an identifier


def require_package(module: str, package: str) -> Any:
    """Return a module of a package that the user has to install.

    Raises:
        UserError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name is None or error.name.split(".")[0] == module.split(".")[0]
        reason = "is not installed" if missing else f"cannot be imported ({error})"
        raise UserError(f"{package} {reason}; pip install {package}") from error


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Return settings by dotted key, each as text: ``{"loss.scale": "64"}``."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        dotted = f"{above}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{dotted}.")
        else:
            found[dotted] = value if isinstance(value, str) else json.dumps(value)
    return found


def identifier(path: Path, iteration: int) -> tuple[str, bool]:
    """Return what a service calls this run, and whether it is known to it already.

    It is kept in a file of the run's folder. A run from the start has a new one, so that its curves
    are not drawn over those of an earlier try.
    """
    if iteration:
        try:
            return read_text(path, _MOST).strip(), True
        except (OSError, UnicodeDecodeError):
            pass  # it was trained without this tracker until now
    return uuid.uuid4().hex, False


def remember(path: Path, name: str) -> None:
    """Keep the identifier of a run."""
    replace_file(path, lambda file: file.write(f"{name}\n".encode()))
