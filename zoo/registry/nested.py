"""Arguments that are components themselves: a loss within a loss, the distance of a loss.

The constructor shows which these are: their annotation is a ``torch.nn.Module``, or, if it has no
annotations, as in pytorch-metric-learning, they have a known name.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from zoo.registry.arguments import REQUIRED, Parameter, parameters_of

# The kind that an argument of that name takes, if it has no annotation.
_BY_NAME = {
    "loss": "losses",
    "losses": "losses",
    "miner": "miners",
    "miners": "miners",
    "distance": "distances",
    "reducer": "reducers",
    "reducers": "reducers",
    "default_reducer": "reducers",
    "regularizer": "regularizers",
    "embedding_regularizer": "regularizers",
    "weight_regularizer": "regularizers",
}
_SEVERAL = {"losses", "miners", "reducers"}
# The kind of a class that derives from one of pytorch-metric-learning's.
_BY_BASE = {
    "BaseDistance": "distances",
    "BaseReducer": "reducers",
    "BaseRegularizer": "regularizers",
    "BaseMiner": "miners",
    "BaseMetricLossFunction": "losses",
}
_Keys = tuple[str | int, ...]


class NestedArgument(NamedTuple):
    """The kind of component that an argument takes, and whether it takes several."""

    kind: str
    several: bool = False


class Spec(NamedTuple):
    """A component as a config has it: its kind, its name and its arguments."""

    kind: str
    name: str
    arguments: dict[str, Any]


def place_of(parameter: Parameter, owner: str) -> NestedArgument | None:
    """Return the components that an argument takes in a class of kind ``owner``, or None."""
    annotation, default = parameter.annotation, parameter.default
    if annotation in (inspect.Parameter.empty, Any):
        kind = _BY_NAME.get(parameter.name) if default in (REQUIRED, None) else None
        return NestedArgument(kind, parameter.name in _SEVERAL) if kind else None
    bases = [base for cls in _classes(annotation) for base in cls.__mro__]
    if not any(b.__name__ == "Module" and b.__module__.startswith("torch.nn") for b in bases):
        return None
    known = [_BY_BASE[base.__name__] for base in bases if base.__name__ in _BY_BASE]
    kind = known[0] if known else _BY_NAME.get(parameter.name, owner)
    return NestedArgument(kind, _is_container(annotation))


def places(target: Any, kind: str, arguments: Mapping[str, Any]) -> dict[str, NestedArgument]:
    """Return which of the given arguments of a class are components, or should be.

    For an argument without a type, a map with a name counts as a component too.
    """
    found = {}
    for parameter in parameters_of(target):
        value = arguments.get(parameter.name)
        place = place_of(parameter, kind)
        if place is None and _is_untyped(parameter) and _is_spec(value):
            place = NestedArgument(kind)
        if place is not None and value is not None:
            found[parameter.name] = place
    return found


def rewrite(
    target: Any, kind: str, arguments: Mapping[str, Any], make: Callable[[_Keys, Spec], Any]
) -> dict[str, Any]:
    """Return arguments in which each component is replaced by the result of ``make``.

    It is called with the keys of the component within the arguments, and its spec. Objects that are
    already built stay as they are.
    """
    found = places(target, kind, arguments)
    return {
        key: _rewrite(found[key], value, make, (key,)) if key in found else value
        for key, value in arguments.items()
    }


def faults(place: NestedArgument, value: Any, keys: _Keys) -> Iterator[tuple[_Keys, str]]:
    """Yield where a value cannot be a component, and what is wrong with it."""
    from zoo.support.values import show

    if place.several and not _is_spec(value):
        if isinstance(value, list | tuple | Mapping) and len(value):
            for key, item in _items(value):
                if item is not None:
                    yield from faults(NestedArgument(place.kind), item, (*keys, key))
        elif _is_plain(value):
            given = "an empty one" if isinstance(value, list | tuple | Mapping) else show(value)
            yield keys, f"must be a list of {place.kind}, or a map of them, not {given}"
    elif place.several:
        yield keys, f"must be a list of {place.kind}, or a map of them, not one of them"
    elif not isinstance(value, str) and not _is_spec(value) and _is_plain(value):
        one = one_of_kind(place.kind)
        given = "a map without one" if isinstance(value, Mapping) else show(value)
        yield keys, f"must be a {one}: its name, or a map with its name, not {given}"


def one_of_kind(kind: str) -> str:
    """Return the singular of a kind, for messages."""
    return {"losses": "loss", "datasets": "data set"}.get(kind, kind.removesuffix("s"))


def _rewrite(
    place: NestedArgument, value: Any, make: Callable[[_Keys, Spec], Any], keys: _Keys
) -> Any:
    one = NestedArgument(place.kind)
    if isinstance(value, str):
        return make(keys, Spec(place.kind, value, {}))
    if _is_spec(value):
        rest = {key: item for key, item in value.items() if key != "name"}
        return make(keys, Spec(place.kind, value["name"], rest))
    if place.several and isinstance(value, list | tuple):
        return [_rewrite(one, item, make, (*keys, i)) for i, item in enumerate(value)]
    if place.several and isinstance(value, Mapping):
        return {key: _rewrite(one, item, make, (*keys, key)) for key, item in value.items()}
    return value


def _items(value: Any) -> list[tuple[str | int, Any]]:
    return list(value.items() if isinstance(value, Mapping) else enumerate(value))


def _is_spec(value: object) -> bool:
    """Return whether a value is a component with its arguments: a map with a name."""
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _is_plain(value: object) -> bool:
    """Return whether a value is plain data, as in a config, and not a built object."""
    return isinstance(value, bool | int | float | str | list | tuple | Mapping)


def _is_untyped(parameter: Parameter) -> bool:
    """Return whether neither annotation nor default shows an argument's type."""
    said = parameter.annotation not in (inspect.Parameter.empty, Any)
    return not said and parameter.default in (REQUIRED, None)


def _classes(annotation: Any) -> Iterator[type]:
    """Yield all classes that an annotation names."""
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _classes(part)


def _is_container(annotation: Any) -> bool:
    origins = [annotation, *typing.get_args(annotation)]
    found = [typing.get_origin(part) for part in origins]
    return any(inspect.isclass(o) and hasattr(o, "__iter__") for o in found)
