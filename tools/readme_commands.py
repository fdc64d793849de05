"""Print a command of the README: how to install and run, or how to install and test.

python tools/readme_commands.py run|test
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def commands() -> dict[str, str]:
    """Return the two commands: the first lines of shell blocks that end in zoo run and pytest."""
    blocks = re.findall(r"```(?:sh|bash|shell)\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    lines = [line for block in blocks for line in block.splitlines() if " && " in line]
    return {
        "run": next(line for line in lines if "&& zoo run" in line),
        "test": next(line for line in lines if "&& pytest" in line),
    }


if __name__ == "__main__":
    print(commands()[sys.argv[1]])
