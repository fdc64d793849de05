"""Problems of a config in plain sentences: pydantic's findings, types and values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from zoo.config.schema import LISTS, NAMED, ConfigFile, numbers_alike
from zoo.support.values import hint, must_be
from zoo.support.yaml import Key, Keys

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "literal_error": "one of {expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_PATTERNS = {
    "name": "letters, digits and any of ._-, the first a letter or digit, to name a folder",
    "device": "auto, cpu, mps, cuda or cuda:<number>",
}


def sentence(error: ErrorDetails) -> tuple[Keys, str]:
    """Return a finding of pydantic as the keys of the config and a plain sentence."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    context = error.get("ctx", {})
    keys = tuple(key for key in loc if key != "[key]")
    if len(loc) > 1 and loc[1] in [_tag(model) for model in _section(loc[:1])]:
        keys = keys[:1] + keys[2:]  # the second names the class that it was compared with
    if kind == "union_tag_not_found":
        return (*keys, "name"), "missing; one of " + ", ".join(map(str, map(_tag, _section(loc))))
    if kind == "union_tag_invalid":
        keys, value = (*keys, "name"), value["name"]
    if kind == "missing" and isinstance(keys[-1], int):
        return keys[:-1], f"must have two values, not {len(value)}"
    if kind == "missing":
        (model,) = _section(loc[:-1])
        return keys, f"missing ({model.model_fields[str(keys[-1])].description})"
    if kind == "extra_forbidden":
        known = [name for model in _section(loc[:-1]) for name in model.model_fields]
        return keys, "unknown key" + hint(str(keys[-1]), known)
    if kind == "invalid_key":
        return keys, "unknown key; keys are text here"
    if kind == "string_pattern_mismatch":
        return keys, must_be(_PATTERNS[str(keys[-1])], value)
    if kind in ("too_long", "too_short", "string_too_long", "string_too_short"):
        return keys, _size_message(context, value)
    if kind == "contradiction":
        return keys, str(context["message"])
    if kind.startswith("model_") and (keys in NAMED or keys[:-1] in LISTS):
        return keys, must_be("a name, or a map with a name and arguments", value)
    if kind == "list_type" and keys in LISTS:
        wanted = "a name, a map with a name and arguments, or a list of them"
        return keys, must_be(wanted, value)
    if kind in _WANTED:
        wanted = _WANTED[kind].format_map({key: _in_short(context[key]) for key in context})
        return keys, must_be(wanted, value)
    return keys, error["msg"]


def settings_named(key: str) -> dict[str, str]:
    """Return the settings of that name in all sections, by dotted key, with descriptions."""
    return {
        f"{section}.{key}": str(model.model_fields[key].description)
        for section in ConfigFile.model_fields
        for model in _section((section,))
        if key in model.model_fields
    }


def _in_short(value: Any) -> Any:
    """Return a limit without a needless ``.0``, and pydantic's "'avg' or 'max'" as "avg, max"."""
    if isinstance(value, str):
        return ", ".join(re.findall(r"'([^']*)'", value))
    return numbers_alike(value)


def _size_message(context: Mapping[str, Any], value: Any) -> str:
    bound, limit = ("most", "max_length") if "max_length" in context else ("least", "min_length")
    unit = "character" if isinstance(value, str) else "value"
    plural = "" if context[limit] == 1 else "s"
    return f"must have at {bound} {context[limit]} {unit}{plural}, not {len(value)}"


def _section(loc: tuple[Key, ...]) -> list[type[BaseModel]]:
    """Return the classes that a section may be checked against; its name selects one."""
    found: list[type[BaseModel]] = [ConfigFile]
    for key in loc:
        if isinstance(key, int):
            continue  # an item of a list is what the list holds
        fields = [model.model_fields[str(key)] for model in found if str(key) in model.model_fields]
        inside = [model for field in fields for model in _models(field.annotation)]
        found = [model for model in found if _tag(model) == key] or inside
    return found


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections in an annotation."""
    if get_args(annotation):  # even of list[int], which counts as a class on Python 3.10
        return [model for part in get_args(annotation) for model in _models(part)]
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return [annotation] if is_section else []


def _tag(model: type[BaseModel]) -> str | None:
    """Return the name that selects a class of a section."""
    field = model.model_fields.get("name")
    return next(iter(get_args(field.annotation)), None) if field else None
