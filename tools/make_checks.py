"""Write losses/checks.json: the outcomes of `zoo check --all`, which `zoo list losses` shows.

    python tools/make_checks.py [NAME ...]

With names, only these losses are checked again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from rich.progress import track

from zoo import checks, registry
from zoo.cli import record as cli_record
from zoo.support import environment


def main() -> None:
    """Check losses and write the record; exit with status 1 if an outcome is wrong."""
    found = cli_record.read()
    names = sys.argv[1:] or registry.names("losses")
    bad = []
    for name in track(names, "checking"):
        report = checks.run(name)
        found[name] = dict(Counter(record.outcome for record in report.records))
        bad += [] if report.ok else [str(report)]
    record = {
        "versions": environment.versions(),
        "losses": {name: found[name] for name in registry.names("losses") if name in found},
    }
    cli_record.path().write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit("\n".join(bad) if bad else 0)


if __name__ == "__main__":
    main()
