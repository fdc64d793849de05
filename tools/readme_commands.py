"""Print a command of the README: the first is the main job's, the second the tests'.

python tools/readme_commands.py run|test
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def commands() -> dict[str, str]:
    """Return the two commands, each the first line of a shell block that does both its parts."""
    blocks = re.findall(r"```(?:sh|bash|shell)\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    lines = [line for block in blocks for line in block.splitlines() if " && " in line]
    return {
        "run": next(line for line in lines if "&& zoo run" in line),
        "test": next(line for line in lines if "&& pytest" in line),
    }


if __name__ == "__main__":
    print(commands()[sys.argv[1]])
