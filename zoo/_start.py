"""Where the command begins: before anything is imported that takes a while."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; Ctrl-C ends it in a line, while it is being imported too."""
    try:
        from zoo import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit("stopped")  # on stderr, with status 1
