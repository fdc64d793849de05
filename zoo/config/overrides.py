"""Settings of the command line, ``loss.scale=32``, as trees of YAML."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.config.schema import LISTS, NAMED
from zoo.support import yaml
from zoo.support.yaml import Keys, Node, Place, Problem, keys_of, nest, spelled_out

COMMAND_LINE = "command line"


def read(texts: Sequence[str], problems: list[Problem]) -> Node:
    """Return the settings of the command line as one tree."""
    tree = Node({}, Place(COMMAND_LINE))
    for text in texts:
        node = _read_override(text, problems)
        if node is not None:
            tree = _join(tree, node, (), problems)
    return tree


def _read_override(text: str, problems: list[Problem]) -> Node | None:
    place = Place(f"{COMMAND_LINE}: {text}")
    path, equals, value = text.partition("=")
    keys = keys_of(path)
    if not equals or "" in keys:
        problems.append(Problem(place, (), "must be of the form key.key=value: loss.scale=32"))
        return None
    if keys == ("extends",):
        problems.append(Problem(place, keys, "only a file can extend another"))
        return None
    node = yaml.parse(value, COMMAND_LINE, problems, place, keys)
    if node is None:
        return None
    node = nest(keys, node)
    spell_out(node)
    return node


def _join(one: Node, other: Node, keys: Keys, problems: list[Problem]) -> Node:
    """Merge two settings, in either order; none may be given twice."""
    one, other = spelled_out(one, other), spelled_out(other, one)
    if not isinstance(one.value, dict) or not isinstance(other.value, dict):
        message = f"given twice: {str(one.place).removeprefix(COMMAND_LINE + ': ')} as well"
        problems.append(Problem(other.place, keys, message))
        return one
    joined = dict(one.value)
    for key, node in other.value.items():
        at = (*keys, key)
        joined[key] = _join(joined[key], node, at, problems) if key in joined else node
    return Node(joined, one.place)


def spell_out(tree: Node) -> None:
    """Expand ``loss: ice`` in a tree to ``loss: {name: ice}``, and ``trackers: csv`` to a list."""
    for keys in NAMED:
        *sections, key = keys
        parent = tree
        for section in sections:
            if isinstance(parent.value, dict) and section in parent.value:
                parent = parent.value[section]
        node = parent.value.get(key) if isinstance(parent.value, dict) else None
        if node is not None:
            parent.value[key] = _listed(node) if keys in LISTS else _named(node)


def _named(node: Node) -> Node:
    """Return the name of a component as a map with that name; anything else unchanged."""
    return Node({"name": node}, node.place) if isinstance(node.value, str) else node


def _listed(node: Node) -> Node:
    """Return one component, or several, as a list of maps."""
    named = _named(node)
    if isinstance(named.value, list):
        return Node([_named(item) for item in named.value], node.place)
    whole = isinstance(named.value, dict) and "name" in named.value
    return Node([named], node.place) if whole else named
