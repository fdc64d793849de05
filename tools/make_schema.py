"""Write configs/schema.json, with which an editor completes and checks configs.

    python tools/make_schema.py [--check]

It has the components of this repository; `zoo config --schema` prints a schema of all installed
components. With --check nothing is written, and the exit status says whether it is stale.
"""

from __future__ import annotations

import json

from _pages import ROOT, keep

from zoo import registry
from zoo.config import editor

SCHEMA = ROOT / "configs" / "schema.json"


def main() -> None:
    """Write the schema, or check that it is up to date."""
    own = {
        kind: [
            n
            for n in registry.names(kind)
            if registry.component(kind, n).distribution == "metric-zoo"
        ]
        for kind in registry.KINDS
    }
    text = json.dumps(editor.schema(own), indent=1, ensure_ascii=False)
    keep(SCHEMA, text + "\n")


if __name__ == "__main__":
    main()
