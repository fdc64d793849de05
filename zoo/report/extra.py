"""The packages of the extra ``report``, which not everybody has."""

from __future__ import annotations

from importlib.util import find_spec

from zoo.errors import UserError

_PACKAGES = ("jinja2", "plotly")


def require() -> None:
    """Say what to install, if something is missing.

    Raises:
        UserError: names the missing packages and the command that installs them.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"zoo report needs {' and '.join(missing)}: pip install 'metric-zoo[report]'"
        )
