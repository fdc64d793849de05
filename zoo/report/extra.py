"""The package that the extra ``report`` installs."""

from __future__ import annotations

from importlib.util import find_spec

from zoo.errors import UserError


def require() -> None:
    """Raise a UserError with the command to install the package, if it is missing."""
    if find_spec("plotly") is None:
        raise UserError("zoo report needs plotly: pip install 'metric-zoo[report]'")
