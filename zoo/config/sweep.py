"""Several experiments in one config: ``sweep`` and ``seeds``, in a file or on the command line.

A sweep is a product of axes. A map of keys to lists of values has an axis for each key; a list of
maps is one axis, whose settings go together; the seeds are another axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zoo.config.overrides import COMMAND_LINE, spell_out
from zoo.config.schema import dig
from zoo.support import yaml
from zoo.support.values import must_be, show
from zoo.support.yaml import Keys, Node, Place, Problem, keys_of, nest

Entry = dict[str, Node]  # settings by dotted key

MAX_RUNS = 1000
_NOT_SWEPT = ("extends", "sweep", "seeds")


class Axis(NamedTuple):
    """Alternative settings, of which each run has one."""

    entries: list[Entry]
    place: Place  # where they were written
    paired: bool = False  # an entry combines several settings, which cannot be separated

    def places(self) -> dict[Keys, Place]:
        """Return the keys that it sets, each with its place."""
        found = [leaf for entry in self.entries for tree in trees(entry) for leaf in _leaves(tree)]
        return dict(reversed(found))


def trees(entry: Entry) -> Iterator[Node]:
    """Yield each setting as a tree to lay over a config."""
    for dotted, node in entry.items():
        tree = nest(keys_of(dotted), node)
        spell_out(tree)
        yield tree


def of_file(tree: Node, problems: list[Problem]) -> list[Axis]:
    """Take ``sweep`` and ``seeds`` out of a config, and return their axes."""
    sweep, seeds = (tree.value.pop(key, None) for key in ("sweep", "seeds"))
    axes: list[Axis] = []
    if sweep is None or sweep.value is None:
        pass
    elif isinstance(sweep.value, dict):
        for key, node in sweep.value.items():
            axes += _values(str(key), node, ("sweep", key), problems)
    elif isinstance(sweep.value, list):
        axes += _pairs(sweep, problems)
    else:
        message = must_be("a map of keys to lists of values, or a list of maps", sweep.value)
        problems.append(Problem(sweep.place, ("sweep",), message))
    if seeds is not None and seeds.value is not None:
        axes += _seeds(seeds, ("seeds",), problems)
    return axes


def of_command_line(
    sweeps: Sequence[str], seeds: str | None, problems: list[Problem]
) -> list[Axis]:
    """Return the axes of ``--sweep key=value,value`` and ``--seeds 0,1,2``."""
    axes: list[Axis] = []
    for text in sweeps:
        place = Place(f"{COMMAND_LINE}: --sweep {text}")
        key, equals, values = text.partition("=")
        if not equals:
            message = "must be of the form key=value,value: loss.scale=16,32"
            problems.append(Problem(place, (), message))
            continue
        node = yaml.parse(f"[{values}]", COMMAND_LINE, problems, place, keys_of(key))
        axes += [] if node is None else _values(key.strip(), node, keys_of(key), problems)
    if seeds is not None:
        place = Place(f"{COMMAND_LINE}: --seeds {seeds}")
        node = yaml.parse(f"[{seeds}]", COMMAND_LINE, problems, place, ("seeds",))
        axes += [] if node is None else _seeds(node, (), problems)
    return axes


def combine(
    of_file: list[Axis], of_line: list[Axis], given: Node, problems: list[Problem]
) -> list[Entry]:
    """Return the settings of every run; axes and settings of the command line take precedence."""
    line = dict(_leaves(given))
    for axis in of_line:
        for keys, where in _conflicts(axis, line):
            text = where.file.removeprefix(f"{COMMAND_LINE}: ")
            problems.append(Problem(axis.place, keys, f"given twice: {text} as well"))
        line |= axis.places()
    kept = []
    for axis in of_file:
        conflicts = _conflicts(axis, line)
        if not conflicts or axis.paired:
            kept.append(axis)
        for keys, where in conflicts if axis.paired else ():
            message = f"is also set by the sweep of {axis.place}; leave it out, or give sweep=null"
            problems.append(Problem(where, keys, message))
    axes = [*kept, *of_line]
    count = math.prod(len(axis.entries) for axis in axes)
    if count > MAX_RUNS:
        message = f"{count:,} runs; more than {MAX_RUNS:,} are too many for one config"
        problems.append(Problem(axes[-1].place, (), message))
        return []
    return [
        {key: node for entry in chosen for key, node in entry.items()}
        for chosen in itertools.product(*(axis.entries for axis in axes))
    ]


def regroup(settings: Sequence[dict[str, Any]], resolved: Sequence[dict[str, Any]]) -> Any:
    """Return ``sweep`` and ``seeds`` that produce the settings of each run, by dotted key.

    The whole configs, ``resolved``, give the values of keys that only some of the runs set.
    """
    runs = [_completed(data, settings) for data in resolved]
    seeds = _distinct(run["seed"] for run in runs if "seed" in run)
    rest = _distinct({k: v for k, v in run.items() if k != "seed"} for run in runs)
    found: dict[str, Any] = {}
    if seeds and len(seeds) * len(rest) == len(runs):
        runs, found = rest, {"seeds": seeds}
    keys = dict.fromkeys(key for run in runs for key in run)
    if not keys:
        return found
    values = {key: _distinct(run[key] for run in runs if key in run) for key in keys}
    whole = all(key in run for run in runs for key in keys)
    if whole and math.prod(map(len, values.values())) == len(runs):
        return {"sweep": values, **found}
    return {"sweep": runs, **found}


def shared(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what two maps have in common; nothing for components of different names."""
    found: dict[str, Any] = {}
    for key, value in one.items():
        if isinstance(value, dict) and isinstance(other.get(key), dict):
            same = value.get("name") == other[key].get("name")
            within = shared(value, other[key]) if same else {}
            if within or value == other[key]:
                found[key] = within
        elif key in other and value == other[key]:
            found[key] = value
    return found


def _completed(data: dict[str, Any], settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a config's values at every key that one of the runs sets."""
    missing = object()
    keys = dict.fromkeys(key for run in settings for key in run)
    found = {key: dig(data, keys_of(key), missing) for key in keys}
    return {key: value for key, value in found.items() if value is not missing}


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _values(key: str, node: Node, keys: Keys, problems: list[Problem]) -> list[Axis]:
    """Return the axis of a key and its list of values."""
    message = _wrong_key(key)
    if message is None and isinstance(node.value, dict):
        inner = next(iter(node.value), "key")
        message = f"must be a list of values, not a map; write {key}.{inner}: [...]"
    elif message is None and not isinstance(node.value, list):
        message = f"must be a list of values, not {show(node.value)}"
    elif message is None and not node.value:
        message = "has no values"
    if message is not None:
        problems.append(Problem(node.place, keys, message))
        return []
    return [Axis([{key: value} for value in node.value], node.place)]


def _pairs(sweep: Node, problems: list[Problem]) -> list[Axis]:
    """Return the axis of a list of maps."""
    found: list[Problem] = []
    for i, node in enumerate(sweep.value):
        if not isinstance(node.value, dict):
            message = must_be("a map of settings", node.value)
            found.append(Problem(node.place, ("sweep", i), message))
            continue
        for key, value in node.value.items():
            message_or_none = _wrong_key(str(key))
            if message_or_none is not None:
                found.append(Problem(value.place, ("sweep", i, key), message_or_none))
    if not sweep.value:
        found.append(Problem(sweep.place, ("sweep",), "has no settings"))
    problems += found
    if found:
        return []
    entries = [{str(key): value for key, value in n.value.items()} for n in sweep.value]
    return [Axis(entries, sweep.place, paired=True)]


def _seeds(node: Node, keys: Keys, problems: list[Problem]) -> list[Axis]:
    if not isinstance(node.value, list) or not node.value:
        message = must_be("a list of whole numbers", node.plain()) if node.value != [] else ""
        problems.append(Problem(node.place, keys, message or "has no values"))
        return []
    return [Axis([{"seed": value} for value in node.value], node.place)]


def _wrong_key(key: str) -> str | None:
    if not all(str(part).strip() for part in keys_of(key)):
        return f"must be a key such as loss.scale, not {show(key)}"
    return "cannot be swept" if keys_of(key)[0] in _NOT_SWEPT else None


def _leaves(node: Node, keys: Keys = ()) -> Iterator[tuple[Keys, Place]]:
    """Yield the keys and the place of every value that is not a map."""
    if isinstance(node.value, dict) and (node.value or not keys):
        for key, inner in node.value.items():
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, node.place


def _conflicts(axis: Axis, others: dict[Keys, Place]) -> list[tuple[Keys, Place]]:
    """Return the other settings that overlap those of an axis, one for each place."""
    own = axis.places()
    found = {
        place: keys
        for keys, place in others.items()
        if any(keys[: len(one)] == one or one[: len(keys)] == keys for one in own)
    }
    return [(keys, place) for place, keys in found.items()]
