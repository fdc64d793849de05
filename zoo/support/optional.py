"""Packages that an extra of ours installs."""

from __future__ import annotations

import importlib
from typing import Any

from zoo.errors import UserError


def installed(package: str, what: str, extra: str) -> Any:
    """Return the module of a package.

    Args:
        package: its name.
        what: needs it, in words.
        extra: installs it.

    Raises:
        UserError: it is missing; with the command to install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        message = f"{what} needs {package}: pip install 'metric-zoo[{extra}]'"
        raise UserError(message) from None
