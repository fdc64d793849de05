"""The package of the extra ``report``, which not everybody has."""

from __future__ import annotations

from importlib.util import find_spec

from zoo.errors import UserError


def require() -> None:
    """Say what to install, if it is missing.

    Raises:
        UserError: names the missing package and the command that installs it.
    """
    if find_spec("plotly") is None:
        raise UserError("zoo report needs plotly: pip install 'metric-zoo[report]'")
