"""The user's file of resources, ``engines.yaml`` in the folder of settings, or ``$ZOO_ENGINES``::

    on: slurm          # the engine if --on is not given
    slurm:
      partition: gpu
      time: 600

Its keys are engines, and what each is given are arguments of its class.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import platformdirs

from zoo.errors import UserError
from zoo.support import yaml
from zoo.support.values import must_be


def resources_file() -> Path:
    """Return the file of the user's resources: ``$ZOO_ENGINES``, else ``engines.yaml``."""
    own = os.environ.get("ZOO_ENGINES")  # an empty one counts as none
    return Path(own) if own else Path(platformdirs.user_config_dir("metric-zoo")) / "engines.yaml"


def read(path: Path) -> dict[str, Any]:
    """Return the content of the file; nothing if there is none."""
    if not path.exists() and not os.environ.get("ZOO_ENGINES"):
        return {}
    problems: list[yaml.Problem] = []
    tree = yaml.read(path, str(path), problems)
    if problems:
        where = "ZOO_ENGINES: " if os.environ.get("ZOO_ENGINES") else ""
        raise UserError(where + "\n".join(f"{one.place}: {one.message}" for one in problems))
    content = tree.plain() if tree is not None and tree.value is not None else {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: {must_be('a map of engines to their settings', content)}")
    return content
