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

Made by `python tools/make_check_docs.py` from the functions; do not edit.

```sh
zoo check --list                        # the checks, a line for each
zoo check ice                           # all checks of a loss
zoo check pml.NTXentLoss temperature=0.015625 --only check_large_gaps
```

`ice` passes. The last command finds a fault, shows the smallest batch that has it, and ends with
status 1: where a positive is far behind a negative, the value is capped in float32, and its
gradient is not that of the formula.

Some checks apply to some losses only. What a loss declares about itself decides which:
[CONTRIBUTING](../CONTRIBUTING.md) lists what it can declare. Miners, samplers, backbones, data
sets, spaces and trackers have [checks of their own](#other-components). In pytest,
`zoo.checks.parametrize_with_checks` makes a test of each check.

| check | what it requires of a loss |
|---|---|
"""
OTHERS = """
## Other components

`zoo check KIND NAME` runs the checks for a component of another kind. Add the arguments that its
constructor needs:

```sh
zoo check samplers m_per_class classes=4 per_class=2
zoo check miners semihard
zoo check backbones convnet
zoo check datasets glyphs
zoo check spaces hyperbolic curvature=0.5
zoo check trackers csv
```

Write a class of your own as `module:Class`, as for losses. In Python, the same is
`zoo.checks.run(MyDataset, kind="datasets")`. For pytest,
`zoo.checks.parametrize_with_checks([MyMiner], kind="miners")` makes tests, whose arguments are
called `component` and `check`. A component may declare `expected_failures`, `random` and
`check_arguments`, as a loss may.
"""


def page() -> str:
    """Return the whole page."""
    summaries = checks.summaries()
    rows = [f"| [{name}](#{name}) | {summary} |\n" for name, summary in summaries.items()]
    return OPENING + "".join(rows) + "".join(map(section, checks.CHECKS)) + others()


def others() -> str:
    """Return the section of the other kinds of components, with a table for each."""
    parts = [OTHERS]
    for kind, found in checks.CHECKS_OF.items():
        if kind != "losses":
            parts.append(f"\n### {kind}\n\n| check | what it requires |\n|---|---|\n")
            parts += [f"| {c.__name__} | {in_one_line(c)} |\n" for c in found]
    return "".join(parts)


def in_one_line(check: checks.Check) -> str:
    """Return the documentation of a check as a cell of a table."""
    return " ".join(markdown(inspect.getdoc(check) or "").split()).replace("|", "\\|")


def section(check: checks.Check) -> str:
    """Return the section of a check: its documentation, and the losses that it applies to."""
    text = inspect.getdoc(check) or ""
    why_not = vars(check).get("why_not")
    if why_not is not None:
        text += "\n\n" + (inspect.getdoc(why_not) or "")
    return f"\n## {check.__name__}\n\n{markdown(text)}\n"


def main() -> None:
    """Write the page, or check that it is up to date."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
