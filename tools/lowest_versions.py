"""Print the lowest versions that pyproject.toml promises, as constraints for pip.

python tools/lowest_versions.py > lowest.txt && pip install -e '.[test]' -c lowest.txt

Each requirement `name>=version` of the package itself and of its extra `test` becomes
`name==version`. A requirement without a lowest version is an error, since it promises nothing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^]]*)\])?\s*(?P<bounds>[^;]*)(?P<marker>;.*)?"
)


def lowest_versions(project: dict[str, Any], extra: str = "test") -> list[str]:
    """Return a constraint for each requirement of a project and of one of its extras.

    Args:
        project: the table `project` of a pyproject.toml.
        extra: the extra; extras of the same project that it names are included.

    Raises:
        ValueError: if a requirement has no lowest version.
    """
    wanted = [*project["dependencies"], *_of_extra(project, extra)]
    return sorted({_pinned(requirement) for requirement in wanted})


def _of_extra(project: dict[str, Any], extra: str) -> list[str]:
    """Return the requirements of an extra and of the extras that it names."""
    found = []
    for requirement in project["optional-dependencies"][extra]:
        parts = REQUIREMENT.match(requirement)
        if parts is not None and parts["name"] == project["name"]:
            for name in parts["extras"].split(","):
                found += _of_extra(project, name.strip())
        else:
            found.append(requirement)
    return found


def _pinned(requirement: str) -> str:
    parts = REQUIREMENT.match(requirement)
    bound = parts and re.search(r">=\s*([^,\s]+)", parts["bounds"])
    if not parts or not bound:
        raise ValueError(f"{requirement}: has no lowest version; write {requirement}>=VERSION")
    return f"{parts['name']}=={bound[1]}{parts['marker'] or ''}"


if __name__ == "__main__":
    settings = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    print("\n".join(lowest_versions(settings["project"])))
