"""Write docs/checks.md, the page of all checks, from their functions.

    python tools/make_check_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

import inspect

from _pages import ROOT, keep
from make_loss_docs import markdown

from zoo import checks

PAGE = ROOT / "docs" / "checks.md"
OPENING = """# Checks

Made by `python tools/make_check_docs.py` from the functions; do not edit. `zoo check NAME` puts a
loss through all of them, `--only CHECK` through one, `zoo check --list` shows this table. What a
loss may say of itself, on which it depends which of them apply, is in
[CONTRIBUTING](../CONTRIBUTING.md).

| check | what it requires of a loss |
|---|---|
"""


def page() -> str:
    """Return the whole page."""
    summaries = checks.summaries()
    rows = [f"| [{name}](#{name}) | {summary} |\n" for name, summary in summaries.items()]
    return OPENING + "".join(rows) + "".join(map(section, checks.CHECKS))


def section(check: checks.Check) -> str:
    """Return the section of a check: its documentation, and which losses it has no meaning for."""
    text = inspect.getdoc(check) or ""
    why_not = vars(check).get("why_not")
    if why_not is not None:
        text += "\n\n" + (inspect.getdoc(why_not) or "")
    return f"\n## {check.__name__}\n\n{markdown(text)}\n"


def main() -> None:
    """Write the page, or say whether it is stale."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
