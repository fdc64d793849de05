"""Check that a wheel has every module, config and record of the checkout, and nothing else.

python tools/check_wheel.py dist/metric_zoo-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def main(wheel: str) -> None:
    """Compare the wheel with the folders that pyproject.toml maps into the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = settings["tool"]["setuptools"]["package-dir"]
    wanted = {
        (Path(*package.split(".")) / path.relative_to(ROOT / folder)).as_posix()
        for package, folder in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".json", ".typed", ".j2", ".css", ".js")
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if wanted != found:
        missing, surplus = sorted(wanted - found), sorted(found - wanted)
        sys.exit(f"{wheel}: missing {missing}, not in the checkout {surplus}")
    print(f"{wheel}: {len(found)} files, as in the checkout")


if __name__ == "__main__":
    main(sys.argv[1])
