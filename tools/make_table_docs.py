"""Write the outputs in docs/tables.md: a block of text after a command is the command's output.

python tools/make_table_docs.py [--check]
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from contextlib import redirect_stdout, suppress

from _pages import ROOT, keep

from zoo.cli import main as cli_main

PAGE = ROOT / "docs" / "tables.md"
_OUTPUT = re.compile(r"```sh\n(zoo .*)\n```\n\n```text\n(?:(?:(?!```).*)\n)*```\n")


def filled(text: str) -> str:
    """Return the page with every output generated again."""
    return _OUTPUT.sub(lambda match: _shown(match[1]), text)


def _shown(command: str) -> str:
    """Return a command and its output."""
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        sys.argv = shlex.split(command)
        cli_main.main()
    output = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
    return f"```sh\n{command}\n```\n\n```text\n{output}\n```\n"


def main() -> None:
    """Write the page, or check that it is up to date."""
    os.chdir(ROOT)
    arguments = list(sys.argv)
    text = filled(PAGE.read_text(encoding="utf-8"))
    sys.argv = arguments
    keep(PAGE, text)


if __name__ == "__main__":
    main()
