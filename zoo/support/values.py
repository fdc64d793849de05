"""Types and values in a config's terms: "must be a number, not '64'"."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection

from zoo.errors import did_you_mean
from zoo.support.yaml import inline, kind_of


def must_be(wanted: str, value: object) -> str:
    """Return "must be x, not y", and a hint at what the user probably meant."""
    message = f"must be {wanted}, not {show(value)}"
    if isinstance(value, str) and "number" in wanted:
        if kind_of(value) in ("int", "float"):
            return message + ", which is text; leave out the quotes"
        if kind_of(value.replace("_", "")) in ("int", "float"):
            return message + "; leave out the underscores"
    if isinstance(value, str) and wanted.startswith("one of "):
        return message + did_you_mean(value, wanted.removeprefix("one of ").split(", "))
    if wanted == "text" and isinstance(value, bool | int | float):
        return message + "; put it in quotes"
    return message


def in_words(annotation: str) -> str:
    """Return a type in a config's terms: ``float | None`` is "a number or null"."""
    words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    parts = re.sub(r"Optional\[(.+)\]", r"\1 | None", annotation).split(" | ")
    choices = [c for part in parts if part.startswith("Literal[") for c in part[8:-1].split(", ")]
    if choices:
        return "one of " + ", ".join([*choices, *["null"] * ("None" in parts)]).replace("'", "")
    return " or ".join((words | {"None": "null"}).get(part, part) for part in parts)


def show(value: object) -> str:
    """Return a value as a config would show it, shortened."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    try:
        text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes no whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def as_setting(value: object) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)  # 1e-05; the dumper writes 1.0e-05 for readers of YAML 1.1
    return " ".join(inline(value).split())


def hint(key: str, known: Collection[str]) -> str:
    """Return a hint at the key that was probably meant, or a list of all."""
    return did_you_mean(key, known) or "; there are " + ", ".join(known)
