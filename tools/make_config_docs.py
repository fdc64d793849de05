"""Write docs/config.md, the page of all settings, from the schema of a config.

    python tools/make_config_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

import json
from typing import Any

from _pages import ROOT, keep

from zoo.config import loading

PAGE = ROOT / "docs" / "config.md"
OPENING = """# Settings of a config

Made by `python tools/make_config_docs.py` from the schema; do not edit.

A config is a YAML file of these settings. You can also give any of them on the command line, by
its dotted name: `zoo run ice_glyphs name=short train.iterations=300`. `zoo config NAME` prints a
config with every default filled in. `zoo` refuses unknown settings and values of the wrong type,
and reports all of them at once, with file and line. YAML is read as version 1.2: `1e-3` is a
number, `no` is text.

## Components

`dataset`, `model.backbone`, `loss`, `miner` and `sampler` each name a component. Its arguments are
beside the name: `loss: {name: ice, scale: 64}`. Without arguments, `loss: ice` is enough; this is
also true for `optimizer` and `schedule`. To find the arguments of a component, see
[losses](losses.md), [the other components](components.md), or `zoo show losses ice`.

## Files that extend others

With `extends: base/glyphs.yaml`, a file starts from the settings of another file, or of a list of
others, and changes them: maps are merged, lists and values are replaced. The path is relative to
the file, or it is the name of a config that ships. A component with another name replaces the whole
inherited component, with its arguments.

## In an editor

Editors that know JSON schemas complete settings and arguments, show what they mean, and mark
mistakes while you type. Write the schema of your installation once; it includes your own
components:

```sh
zoo config --schema > zoo.schema.json
```

Then begin each config with the line that language servers for YAML look for. Its path is relative
to the config:

```text
# yaml-language-server: $schema=zoo.schema.json
```

`configs/schema.json` is a schema with the components of this repository only.

"""

# The key that each choice belongs to.
_HOMES = dict.fromkeys(("SGD", "Adam", "AdamW"), "optimizer")
_HOMES |= dict.fromkeys(("Constant", "Cosine", "Step", "Linear"), "schedule")


def page() -> str:
    """Return the whole page."""
    found = loading.schema()
    sections = found["$defs"]
    text = OPENING + _section("At the top", found, "")
    for key, title in (("Images", "images"), ("Model", "model")):
        text += _section(title, sections[key], f"{title}.")
    for title in dict.fromkeys(_HOMES.values()):
        text += f"## {title}\n\n"
        for part in (sections[name] for name, home in _HOMES.items() if home == title):
            own = part["properties"]["name"]["const"]
            text += _section(f"{title}: {own}", part, f"{title}.", level=3)
    for key, title in (("Train", "train"), ("Evaluate", "evaluate"), ("Paper", "paper")):
        text += _section(title, sections[key], f"{title}.")
    return text.rstrip() + "\n"


def _section(title: str, part: dict[str, Any], prefix: str, level: int = 2) -> str:
    """Return the description and the table of a section."""
    required = part.get("required", [])
    lines = [f"{'#' * level} {title}\n", f"{part['description']}\n"]
    lines += ["| setting | value | default | what it is |", "|---|---|---|---|"]
    for name, field in part["properties"].items():
        if name == "name" and prefix in ("optimizer.", "schedule."):
            continue  # it is in the title
        default = "required" if name in required else _code(field.get("default"))
        if f"{prefix}{name}" == "name":
            default = "the file's"
        cells = (f"`{prefix}{name}`", _words(field), default, field["description"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n\n"


def _words(field: dict[str, Any]) -> str:
    """Return the possible values of a setting in words."""
    choices = field.get("anyOf") or field.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(map(_words, choices)))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return (
            "component" if name == "ComponentSpec" else f"[map](#{_HOMES.get(name, name.lower())})"
        )
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type")
    if kind == "array":
        pair = field.get("prefixItems")
        return f"list of {len(pair)} numbers" if pair else f"list of {_plural(field['items'])}"
    words = {"integer": "whole number", "number": "number", "string": "text", "object": "map"}
    words |= {"boolean": "`true`, `false`", "null": "`null`"}
    return words[kind] + _bounds(field)


def _plural(items: dict[str, Any]) -> str:
    words = {"integer": "whole numbers", "number": "numbers", "object": "maps"}
    return words.get(items.get("type", ""), "values") + _bounds(items)


def _bounds(field: dict[str, Any]) -> str:
    """Return the bounds of a number."""
    bounds = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "up to {}",
        "exclusiveMaximum": "below {}",
    }
    found = [words.format(f"{field[key]:,.0f}") for key, words in bounds.items() if key in field]
    return " " + ", ".join(found) if found else ""


def _code(value: Any) -> str:
    if isinstance(value, dict):
        return "" if value else "`{}`"
    return f"`{json.dumps(value)}`"


def main() -> None:
    """Write the page, or check that it is up to date."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
