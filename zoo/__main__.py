"""Where ``zoo`` and ``python -m zoo`` start, before anything slow is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; Ctrl-C ends it with one line, even while modules are being imported."""
    try:
        from zoo.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit("stopped")  # on stderr, with status 1


if __name__ == "__main__":
    main()
