"""The settings in which the experiments of a board differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from zoo.support.values import as_setting

_IN_COLUMNS = {"dataset", "loss", "model.backbone", "model.embedding_size"}
_PATHS = ("root", "weights")  # other differences show in the digest
_MISSING_IF_NULL = {"evaluate": ("validation",), "model": ("slices", "space")}
_OF_TRAINING = ("loss", "miner", "sampler", "optimizer", "schedule", "train")


class _Key(NamedTuple):
    """A setting; the scale of one loss and the scale of another are two settings."""

    path: str  # dotted, as on the command line
    owners: tuple[tuple[str, str], ...]  # path and name of each component that contains it


class Differences(NamedTuple):
    """The settings in which experiments differ.

    Attributes:
        own: for each experiment, its settings as on the command line, such as ``loss.scale=16``,
            without those that most experiments share.
        shared: the settings that most share.
    """

    own: list[list[str]]
    shared: list[str]


def find(experiments: Sequence[Mapping[str, Any] | None]) -> Differences:
    """Return the settings in which experiments differ, without those that have a column.

    Args:
        experiments: the settings of each, as ``Config.settings`` returns them; None if unknown.
    """
    found = [dict(_leaves(_relevant(settings or {}))) for settings in experiments]
    known = [leaves for leaves in found if leaves]
    keys = dict.fromkeys(key for leaves in known for key in leaves)
    differing = [key for key in keys if key.path not in _IN_COLUMNS and _differs(key, known)]
    usual = {key: _usual(key, known) for key in differing}
    shared = [_shown(key, value) for key, value in usual.items() if value is not None]
    return Differences([_own(leaves, usual) for leaves in found], shared)


def between(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return how one differs from the other, such as ``images.crop=28 instead of null``.

    Args:
        one: settings of an experiment, or a part of them.
        other: those of the other.
    """
    mine, theirs = dict(_leaves(one)), dict(_leaves(other))
    return [
        f"{_shown(key, mine.get(key, 'null'))} instead of {_value(theirs.get(key, 'null'))}"
        for key in dict.fromkeys([*mine, *theirs])
        if mine.get(key) != theirs.get(key) and _can_have(key, mine) and _can_have(key, theirs)
    ]


def _own(leaves: Mapping[_Key, str], usual: Mapping[_Key, str | None]) -> list[str]:
    """Return the settings of an experiment that are not the usual ones."""
    if not leaves and usual:
        return ["not recorded"]
    return [_shown(k, leaves[k]) for k, v in usual.items() if k in leaves and leaves[k] != v]


def _relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, without those of training if there was none."""
    for section, keys in _MISSING_IF_NULL.items():
        if isinstance(settings.get(section), Mapping):
            settings = {**settings, section: dict.fromkeys(keys) | settings[section]}
    train = settings.get("train")
    if not isinstance(train, Mapping) or train.get("iterations") != 0:
        return dict(settings)
    kept = {key: value for key, value in settings.items() if key not in _OF_TRAINING}
    return {**kept, "train": {"iterations": 0}}


def _leaves(
    data: Mapping[str, Any], path: str = "", owners: tuple[tuple[str, str], ...] = ()
) -> Iterator[tuple[_Key, str]]:
    """Yield every setting and its value as JSON; ``loss: {name: ice}`` has ice at ``loss``."""
    for key, value in data.items():
        inner = f"{path}.{key}" if path else key
        if not isinstance(value, Mapping) or not value:
            yield _Key(inner, owners), json.dumps(_without_folder(key, value))
        elif "name" not in value:
            yield from _leaves(value, inner, owners)
        else:
            name = json.dumps(value["name"])
            rest = {k: v for k, v in value.items() if k != "name"}
            yield _Key(inner, owners), name
            yield from _leaves(rest, inner, (*owners, (inner, name)))


def _without_folder(key: str, value: Any) -> Any:
    """Return a setting; only the name of a file or folder, which is the same everywhere."""
    is_path = key in _PATHS and isinstance(value, str)
    return PurePath(value).name or value if is_path else value


def _differs(key: _Key, known: Sequence[Mapping[_Key, str]]) -> bool:
    """Return whether the experiments that can have a setting differ in it; unset is a value."""
    return len({leaves.get(key) for leaves in known if _can_have(key, leaves)}) > 1


def _can_have(key: _Key, leaves: Mapping[_Key, str]) -> bool:
    """Return whether an experiment has the components that contain a setting.

    Arguments that are null by default are missing unless they were given.
    """
    outer = [(_Key(path, key.owners[:i]), name) for i, (path, name) in enumerate(key.owners)]
    return key in leaves or (bool(outer) and all(leaves.get(k) == name for k, name in outer))


def _usual(key: _Key, known: Sequence[Mapping[_Key, str]]) -> str | None:
    """Return the value of most experiments, if most have the component; else None.

    At least three must share it: with two, showing both settings is clearer.
    """
    values = Counter(leaves[key] for leaves in known if key in leaves)
    total = values.total()
    value, count = values.most_common(1)[0]
    return value if 2 * total > len(known) and 2 * count > total and count > 2 else None


def _shown(key: _Key, value: str) -> str:
    return f"{key.path}={_value(value)}"


def _value(value: str) -> str:
    return as_setting(json.loads(value))
