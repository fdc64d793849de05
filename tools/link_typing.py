"""Link the component folders into build/typing/zoo, as the wheel installs them.

Type checkers do not follow the import finder of an editable install. This tree of links has the
layout of the installed package, for them to read.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "typing"


def main() -> None:
    """Create the tree of links from [tool.setuptools.package-dir]."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = settings["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(TARGET, ignore_errors=True)
    (TARGET / "zoo").mkdir(parents=True)
    for entry in (ROOT / folders.pop("zoo")).iterdir():
        if entry.name != "__pycache__":
            (TARGET / "zoo" / entry.name).symlink_to(entry)
    for package, folder in folders.items():
        (TARGET / Path(*package.split("."))).symlink_to(ROOT / folder)
    print(f"linked {len(folders) + 1} packages into {TARGET}")


if __name__ == "__main__":
    main()
