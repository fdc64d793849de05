"""The JSON schema with which an editor completes and checks configs, components included.

It is looser than the checks of zoo.config in one way: nothing is required, since a file may get any
setting from the files that it extends.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from zoo.config import loading
from zoo.config.schedules import ArgumentSchedule
from zoo.config.schema import COMPONENTS, LISTS, NAMED, SCHEDULED
from zoo.errors import UserError
from zoo.registry import Kind, components, nested
from zoo.registry.arguments import Parameter, type_of
from zoo.support.yaml import Keys

_Schema = dict[str, Any]
_EXTENDS = "a file or a shipped config, or a list of them, whose settings this file changes"
_MAPS = ("properties", "$defs")  # maps from names to schemas
_DROPPED = ("required", "title", "discriminator")


def schema(names: Mapping[Kind, Sequence[str]] | None = None) -> _Schema:
    """Return the JSON schema of a config file with these components, by default all installed ones.

    Those of pytorch-metric-learning are recognised by their prefix.
    """
    known = names or {kind: components.names(kind) for kind in components.KINDS}
    found = cast("_Schema", _loose(loading.schema()))
    del found["$defs"]["ComponentSpec"]
    found["$defs"]["ArgumentSchedule"] = _loose(ArgumentSchedule.model_json_schema())
    for kind in components.KINDS:
        found["$defs"][kind] = _components(kind, known[kind])
    for keys in NAMED:
        _admit_name(found, keys)
    found["properties"]["extends"] = {
        "description": _EXTENDS,
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "metric-zoo"} | found


def argument_texts(target: Any) -> dict[str, str]:
    """Return the docstring of each argument of a class."""
    text = components.documentation(target)
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.M)
    items = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M)
    return {name: " ".join(words.replace("``", "`").split()) for name, words in items}


def _loose(node: Any) -> Any:
    """Return a schema in which nothing is required and no key has a title."""
    if isinstance(node, list):
        return [_loose(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {}
    for key, value in node.items():
        if key in _MAPS:
            found[key] = {name: _loose(one) for name, one in value.items()}
        elif key not in _DROPPED:
            # Without its name, a part may be any of the choices.
            found["anyOf" if key == "oneOf" else key] = _loose(value)
    return found


def _admit_name(found: _Schema, keys: Keys) -> None:
    """Allow ``key: x`` for ``key: {name: x}``, and only components of the registry."""
    *sections, key = keys
    place = found["$defs"][str(sections[0]).capitalize()] if sections else found
    node = place["properties"][key]
    choices: list[_Schema]
    kind = COMPONENTS.get(keys)
    if keys in LISTS:
        one: _Schema = {"$ref": f"#/$defs/{LISTS[keys]}"}
        choices = [one, {"type": "array", "items": one}]
    elif kind is not None:
        nullable = {"type": "null"} in node.get("anyOf", [])
        choices = [{"$ref": f"#/$defs/{kind}"}, *[{"type": "null"}] * nullable]
    else:
        names: _Schema = {"enum": _names(found, node)}
        choices = [names, *node["anyOf"]]
    kept = {k: v for k, v in node.items() if k in ("description", "default")}
    place["properties"][key] = kept | {"anyOf": choices}


def _names(found: _Schema, choices: Any) -> list[str]:
    """Return the names of optimizers or schedules, each of which has its own section."""
    if isinstance(choices, list):
        return [name for choice in choices for name in _names(found, choice)]
    if "$ref" in choices:
        section = found["$defs"][choices["$ref"].removeprefix("#/$defs/")]
        return [section["properties"]["name"]["const"]]
    return _names(found, choices.get("anyOf", []))


def _components(kind: Kind, names: Sequence[str]) -> _Schema:
    """Return the schema of a component of a kind: its name alone, or with its arguments."""
    single = [name for name in names if not name.endswith(".*")]
    families = [name for name in names if name.endswith(".*")]
    patterns = [f"^{re.escape(name[:-1])}" for name in families]
    patterns += [r"^pml\."] * bool(components.pml_names(kind))
    choices: list[_Schema] = [{"enum": single}]
    choices += [{"type": "string", "pattern": pattern} for pattern in patterns]
    name: _Schema = {
        "description": f"one of the {kind} that `zoo list {kind}` shows",
        "anyOf": choices,
    }
    rules = [_rule(kind, one, {"const": one}) for one in single]
    rules += [_rule(kind, one, {"pattern": p}) for one, p in zip(families, patterns, strict=False)]
    whole = {
        "type": "object",
        "properties": {"name": name},
        "allOf": [rule for rule in rules if rule],
    }
    return {"anyOf": [name, whole]}


def _rule(kind: Kind, name: str, condition: _Schema) -> _Schema | None:
    """Return the schema of a component's arguments; None if it cannot be imported."""
    try:
        texts = argument_texts(components.load(kind, name))
        parameters = components.describe(kind, name).parameters
    except UserError:
        return None
    properties: _Schema = {
        parameter.name: _argument(kind, parameter, texts.get(parameter.name, ""))
        for parameter in parameters
        if parameter.name not in loading.set_by_run(kind)
    }
    return {
        "if": {"properties": {"name": condition}, "required": ["name"]},
        "then": {"properties": {"name": {}} | properties, "additionalProperties": False},
    }


def _argument(kind: Kind, parameter: Parameter, text: str) -> _Schema:
    """Return the schema of an argument, as far as its annotation and default show it."""
    found: _Schema = {"description": text} if text else {}
    place = nested.place_of(parameter, kind)
    found |= _nested_components(place, parameter) if place else _type(parameter)
    if kind in SCHEDULED and found.get("type") in ("number", "integer"):
        number = found.pop("type")
        found["anyOf"] = [{"type": number}, {"$ref": "#/$defs/ArgumentSchedule"}]
    with contextlib.suppress(TypeError, ValueError):  # a default that JSON cannot hold is left out
        found |= (
            {} if parameter.required else {"default": json.loads(json.dumps(parameter.default))}
        )
    return found


def _nested_components(place: nested.NestedArgument, parameter: Parameter) -> _Schema:
    """Return the schema of an argument that is a component itself, or several of them."""
    one: _Schema = {"$ref": f"#/$defs/{place.kind}"}
    if place.kind not in components.KINDS:
        names: _Schema = {"type": "string"}
        one = {"anyOf": [names, {"type": "object", "properties": {"name": names}}]}
    nothing: list[_Schema] = [{"type": "null"}] if parameter.default is None else []
    if not place.several:
        return {"anyOf": [one, *nothing]}
    several: _Schema = {"anyOf": [one, {"type": "null"}]}
    many = [
        {"type": "array", "items": several},
        {"type": "object", "additionalProperties": several},
    ]
    return {"anyOf": [*many, *nothing]}


def _type(parameter: Parameter) -> _Schema:
    import pydantic

    annotation = type_of(parameter)
    if annotation is None:
        return {}
    try:
        return cast("_Schema", _loose(pydantic.TypeAdapter(annotation).json_schema()))
    except Exception:  # noqa: BLE001 - a stranger's annotation that JSON has no words for
        return {}
