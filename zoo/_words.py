"""Types and values in the words of a config: "must be a number, not '64'"."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Collection

from zoo._yaml import inline, kind_of
from zoo.errors import did_you_mean


def must_be(wanted: str, value: object) -> str:
    """Return "must be x, not y", with what the user probably meant."""
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
    """Return a type in the words of a config: ``float | None`` is "a number or null"."""
    words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    parts = re.sub(r"Optional\[(.+)\]", r"\1 | None", annotation).split(" | ")
    choices = [c for part in parts if part.startswith("Literal[") for c in part[8:-1].split(", ")]
    if choices:
        return "one of " + ", ".join([*choices, *["null"] * ("None" in parts)]).replace("'", "")
    return " or ".join((words | {"None": "null"}).get(part, part) for part in parts)


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 class" or "3 classes"; without ``many``, an s is added."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def show(value: object) -> str:
    """Return a value as a config would have it, cut short."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    try:
        text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes no whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def as_setting(value: object) -> str:
    """Return a value as one would write it on the command line."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)  # 1e-05; the dumper writes 1.0e-05, for readers of YAML 1.1
    return " ".join(inline(value).split())


def printable(text: str) -> str:
    """Return a text on one line that cannot steer a terminal, whoever wrote it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless(text: str) -> str:
    """Return a text of any lines that cannot steer a terminal; spaces of any width stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _is_space(c) else printable(c) for c in text)


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def hint(key: str, known: Collection[str]) -> str:
    return did_you_mean(key, known) or "; there are " + ", ".join(known)
