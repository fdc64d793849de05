"""Where ``zoo`` and ``python -m zoo`` start, before anything slow is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; Ctrl-C and SIGTERM end it with one line, even while modules are imported."""
    from zoo.support import signals

    signals.end_as_ctrl_c_does()
    try:
        from zoo.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit("stopped")  # on stderr, with status 1


if __name__ == "__main__":
    main()
